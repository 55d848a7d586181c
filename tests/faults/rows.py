"""Faults: how each is made, and what preflight must find. Nothing else may be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Wanted = tuple[str, str, str, str]  # hosts (h[1-2]), check, found has this, why or hint has this


@dataclass(frozen=True)
class Row:
    name: str
    script: str = ""  # on the machines
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # changed entries of hosts.toml
    logins: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[Wanted, ...] = ()
    only: tuple[str, ...] = ("h1", "h2", "h3", "h4")
    patience: float = 0.8  # seconds for a connection
    trains: bool = False  # a job that needs TensorFlow, with a site of packages on each machine
    holds: tuple[str, int] | None = None  # a program on a machine that listens on a port
    leases: tuple[str, str] | None = None  # a run on a machine that has leased the task port


def drop(host: str, rule: str, target: str = "DROP") -> str:
    return f"on {host} iptables -A {rule} -j {target}"


def several(*scripts: str) -> str:
    return "\n".join(scripts)


def each(make: Callable[[str], str], *hosts: str) -> str:
    return several(*map(make, hosts))


TCP = "-p tcp --dport 2222"
UFW = "ufw allow 2222/tcp"
MTU = "-m length --length 1400:65535"

NETWORK = (
    Row("healthy"),
    Row(
        "a firewall drops the task port",
        drop("h2", f"INPUT -i eth0 {TCP}"),
        wanted=(("h2", "reach", "no other host reaches its task port 2222: timed out", UFW),),
    ),
    Row(
        "it drops what comes from itself, too",
        drop("h2", f"INPUT {TCP}"),
        wanted=(("h2", "reach", "no other host reaches its task port 2222: timed out", "pings get there"),),
    ),
    Row(
        "it drops only what comes from itself",
        drop("h2", f"INPUT -i lo {TCP}"),
        wanted=(("h2", "reach", "cannot reach its own address", "iptables -I INPUT -i lo -j ACCEPT"),),
    ),
    Row("a smaller MTU of one host, of which the others are told", "on h2 ip link set eth0 mtu 1400"),
    Row(
        "all hosts have one",
        each(lambda host: drop(host, f"INPUT -i eth0 {TCP}"), "h1", "h2", "h3", "h4"),
        wanted=(("h[1-4]", "reach", "no task port is reached from it, nor its own", "open TCP port 2222"),),
    ),
    Row(
        "two hosts, one with a firewall",
        drop("h2", f"INPUT -i eth0 {TCP}"),
        only=("h1", "h2"),
        wanted=(("h2", "reach", "h1 cannot reach its task port 2222: timed out", UFW),),
    ),
    Row(
        "one host lets another not in",
        drop("h2", f"INPUT -s 10.77.0.3 {TCP}"),
        wanted=(("h2", "reach", "h3 cannot reach its task port 2222: timed out", UFW),),
    ),
    Row(
        "outgoing connections are stopped",
        drop("h3", f"OUTPUT -o eth0 {TCP}"),
        wanted=(("h3", "reach", "reaches no other host: timed out", "outgoing rules"),),
    ),
    Row(
        "its cable is out",
        "on h4 ip link set eth0 down",
        wanted=(("h4", "reach", "nothing passes to it nor from it", "cable"),),
    ),
    Row(
        "a hole in the MTU towards a host",
        drop("h2", f"INPUT -i eth0 {MTU}"),
        wanted=(("h2", "packets", "large packets to it vanish", "ip link set eth0 mtu 1400"),),
    ),
    Row(
        "a hole in the MTU of two hosts",
        drop("h2", f"INPUT -i eth0 {MTU}"),
        only=("h1", "h2"),
        wanted=(("h2", "packets", "large packets from h1 vanish", "MTU hole"),),
    ),
)

ADDRESSES = (
    Row(
        "another host's address",
        hosts={"h4": {"address": "10.77.0.3"}},
        wanted=(("h4", "reach", "its task port 2222: answered by h3", "it has 10.77.0.4 on eth0"),),
    ),
    Row(
        "a loopback address",
        hosts={"h4": {"address": "127.0.0.1"}},
        wanted=(("h4", "address", "127.0.0.1 means 127.0.0.1 on h[1-4]", "10.77.0.4"),),
    ),
    Row(
        "127.0.1.1 of the installer's /etc/hosts",
        logins={
            "h4": "echo '127.0.1.1 four.test' > h4.etc; MOUNT=h4.etc",
            "*": "echo '10.77.0.4 four.test' > other.etc; MOUNT=other.etc",
        },
        hosts={"h4": {"address": "four.test"}},
        wanted=(("h4", "address", "four.test means 127.0.1.1 on h4", "/etc/hosts"),),
    ),
    Row(
        "a name that one host does not know",
        logins={
            "h1": "echo > h1.etc; MOUNT=h1.etc",
            "*": "echo '10.77.0.4 four.test' > other.etc; MOUNT=other.etc",
        },
        hosts={"h4": {"address": "four.test"}},
        wanted=(("h4", "reach", "h1 cannot reach its task port 2222: does not resolve", "/etc/hosts"),),
    ),
    Row(
        "a second address of the same machine",
        several("on h4 ip addr add 10.77.0.44/24 dev eth0"),
        hosts={"h4": {"address": "10.77.0.44"}},
    ),
    Row(
        "addresses of IPv6",
        each(lambda host: f"on {host} ip addr add fd77::{host[1]}/64 dev eth0 nodad", "h1", "h2", "h3", "h4"),
        hosts={f"h{number}": {"address": f"fd77::{number}"} for number in (1, 2, 3, 4)},
    ),
    Row(
        "a NAT that does not lead back",
        each(
            lambda h: f"on {h} iptables -t nat -A OUTPUT -d 10.88.0.4 -j DNAT --to 10.77.0.4",
            "h1",
            "h2",
            "h3",
        ),
        hosts={"h4": {"address": "10.88.0.4"}},
        wanted=(("h4", "reach", "cannot reach its own address 10.88.0.4:2222", "NAT"),),
    ),
)

# What trains, in small: packages of the right names, versions and mistakes. The real one is imported by the
# row of `tests/cluster`, and by every launch.
SITE = """
mkdir -p {name}.site; cd {name}.site
package() {{ mkdir -p $1 $2-$3.dist-info; echo "__version__ = '$3'" >$1/__init__.py; }}
package numpy numpy 2.4.6
package tensorflow tensorflow_cpu 2.21.0
package tf_keras tf_keras 2.21.0
mkdir -p google/protobuf protobuf-6.33.0.dist-info; echo "__version__ = '6.33.0'" >google/protobuf/__init__.py
cd ..
"""


def site(name: str, more: str = "") -> str:
    """A machine with that site, and what is done to it."""
    return f"{SITE.format(name=name)}\n(cd {name}.site\n{more}\n)"


def sites(host: str = "", more: str = "", *names: str) -> str:
    """All of them, one with a change."""
    return several(*(site(name, more if name == host else "") for name in names or ("h1", "h2", "h3", "h4")))


def limit(host: str, ulimit: str) -> Mapping[str, str]:
    return {host: f"ulimit {ulimit}"}


PACKAGES = (
    Row("healthy packages", sites(), trains=True),
    Row(
        "a broken library",
        sites(
            "h3",
            "printf 'not ELF' >tensorflow/_lib.so; echo 'import tensorflow._lib' >>tensorflow/__init__.py",
        ),
        trains=True,
        wanted=(
            (
                "h3",
                "import",
                "tensorflow cannot be imported",
                "--force-reinstall --no-deps tensorflow-cpu==2.21.0",
            ),
        ),
    ),
    Row(
        "a processor without AVX",
        sites("h3", "echo 'import os, signal; os.kill(os.getpid(), signal.SIGILL)' >>tensorflow/__init__.py"),
        trains=True,
        wanted=(("h3", "import", "Python ended importing tensorflow", "AVX"),),
    ),
    Row(
        "what is installed is not what is imported",
        sites(
            "h3", "echo \"__version__ = '2.20.0'\" >tensorflow/__init__.py; package tf_keras tf_keras 2.20.0"
        ),
        trains=True,
        wanted=(
            ("h3", "tensorflow", "2.20.0", "the usual version here is 2.21.0"),
            ("h3", "tf_keras", "2.20.0", "the usual version here is 2.21.0"),
        ),
    ),
)

LIMITS = (
    Row("a workdir with a name for trouble", hosts={"h3": {"workdir": "a b; $(touch c) 'd"}}),
    Row(
        "GPUs that are not there",
        hosts={"h3": {"devices": ("0",)}},
        wanted=(("h3", "gpu", "none seen", "nvidia-smi"),),
    ),
    Row(
        "a full disk",
        logins={"h3": "mkdir -p full; TMPFS=full"},
        hosts={"h3": {"workdir": "full"}},
        wanted=(("h3", "disk", "free", "needs room"),),
    ),
)

PORTS = (
    Row(
        "another program has the port",
        holds=("h2", 2222),
        wanted=(("h2", "port", "2222 taken", "end what holds it"),),
    ),
    Row(
        "the port is among those of outgoing connections",
        # An odd one: Linux gives the even ones to connections first, and one of the checks' own may have it.
        hosts={name: {"task_port": 40001} for name in ("h1", "h2", "h3", "h4")},
        wanted=(("h[1-4]", "port", "40001", "task_port"),),
    ),
    Row(
        "a run has the port",
        leases=("h2", "r-other"),
        wanted=(("h2", "port", "2222 taken", "orchestrate stop"),),
    ),
    Row(
        "two entries for one machine",
        hosts={"h4": {"agent_python": "h3-python", "address": "10.77.0.3"}},
        wanted=(("h4", "machine", "is h3 under another name", "give h4 another `task_port`"),),
    ),
)
ROWS = (*NETWORK, *ADDRESSES, *PACKAGES, *LIMITS, *PORTS)
