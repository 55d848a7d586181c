"""Faults: how each is caused, and what preflight must report, without reporting anything else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model import FrameworkName

Wanted = tuple[str, str, str, str]  # hosts (h[1-2]), check, found has this, why or hint has this


@dataclass(frozen=True)
class Row:
    name: str
    script: str = ""  # on the machines
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # changed entries of hosts.toml
    logins: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[Wanted, ...] = ()
    framework: FrameworkName = FrameworkName.TENSORFLOW
    trains: bool = False  # a job that needs TensorFlow, with a site of packages on each machine
    holds: str = ""  # a machine where a program listens on the task port
    leases: str = ""  # a machine where another run has leased it


def drop(host: str, rule: str) -> str:
    return f"on {host} iptables -A {rule} -j DROP"


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
    Row("a smaller MTU of one host, of which the others are told", "on h2 ip link set eth0 mtu 1400"),
    Row(
        "one host lets another not in",
        drop("h2", f"INPUT -s 10.77.0.3 {TCP}"),
        wanted=(("h2", "reach", "h3 cannot reach its task port 2222: timed out", UFW),),
    ),
    Row(
        "its cable is out",
        "on h4 ip link set eth0 down",
        wanted=(("h4", "reach", "no other host reaches its task port", "cable"),),
    ),
    Row(
        "a hole in the MTU towards a host",
        drop("h2", f"INPUT -i eth0 {MTU}"),
        wanted=(("h2", "packets", "large packets from h[1,3-4] are lost", "ip link set INTERFACE mtu 1400"),),
    ),
)

ADDRESSES = (
    Row(
        "another host's address",
        hosts={"h4": {"address": "10.77.0.3"}},
        wanted=(("h4", "reach", "its task port 2222: answered by h3", "it has 10.77.0.4 on eth0"),),
    ),
    Row(
        "127.0.1.1 of the installer's /etc/hosts",
        logins={
            "h4": "echo '127.0.1.1 four.test' > h4.etc; MOUNT=h4.etc",
            "*": "echo '10.77.0.4 four.test' > other.etc; MOUNT=other.etc",
        },
        hosts={"h4": {"address": "four.test"}},
        wanted=(("h4", "address", "four.test resolves to 127.0.1.1 on h4", "/etc/hosts"),),
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
        "addresses of IPv6",
        "\n".join(f"on h{n} ip addr add fd77::{n}/64 dev eth0 nodad" for n in range(1, 5)),
        hosts={f"h{number}": {"address": f"fd77::{number}"} for number in (1, 2, 3, 4)},
    ),
    Row(
        "a NAT that does not lead back",
        "\n".join(
            f"on h{n} iptables -t nat -A OUTPUT -d 10.88.0.4 -j DNAT --to 10.77.0.4" for n in range(1, 4)
        ),
        hosts={"h4": {"address": "10.88.0.4"}},
        wanted=(("h4", "reach", "cannot reach its own address 10.88.0.4:2222", "NAT"),),
    ),
)

JAX, TORCH = FrameworkName.JAX, FrameworkName.TORCH
DEBIAN = {
    "h1": "echo '127.0.0.1 localhost' > h1.etc; MOUNT=h1.etc",
    "h2": 'echo "127.0.1.1 $(uname -n)" > h2.etc; MOUNT=h2.etc',
    "h3": 'echo "10.99.0.3 $(uname -n)" > h3.etc; MOUNT=h3.etc',
    "h4": 'echo "10.77.0.4 $(uname -n)" > h4.etc; MOUNT=h4.etc',
}
SECOND = "on h3 ip addr add 10.99.0.3/24 dev lo"  # any other interface
OWN_NAMES = (
    Row(
        "own names that JAX cannot use: none, Debian's, that of another network",
        SECOND,
        logins=DEBIAN,
        framework=JAX,
        wanted=(
            ("h1", "hostname", "does not resolve", "add the line `10.77.0.1 "),
            ("h2", "hostname", "resolves to 127.0.1.1", "would connect to themselves"),
            ("h3", "hostname", "resolves to 10.99.0.3 on lo", "connect to another network"),
        ),
    ),
    Row("the same names, and PyTorch, which gets the interface", SECOND, logins=DEBIAN, framework=TORCH),
    Row("the same names, and TensorFlow, which has no gloo", SECOND, logins=DEBIAN),
)

# A small training setup: packages with the right names, versions, and defects. The real one is imported by
# the row of `tests/cluster`, and by every launch.
SITES = """
package() { mkdir -p $1 $2-$3.dist-info; echo "__version__ = '$3'" >$1/__init__.py; }
for name in h1 h2 h3 h4; do
    mkdir -p $name.site/google; cd $name.site
    package pip pip 26.0
    package numpy numpy 2.4.6
    package tensorflow tensorflow_cpu 2.21.0
    package tf_keras tf_keras 2.21.0
    package google/protobuf protobuf 6.33.0
    cd ..
done
"""
BROKEN = """
printf 'not ELF' >h3.site/tensorflow/_lib.so
echo 'import tensorflow._lib' >>h3.site/tensorflow/__init__.py
"""

PACKAGES = (
    Row("healthy packages", SITES, trains=True),
    Row(
        "a broken library",
        SITES + BROKEN,
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
)

LIMITS = (
    Row("a workdir with a name for trouble", hosts={"h3": {"workdir": "a b; $(touch c) 'd"}}),
    Row(
        "a full disk",
        logins={"h3": "mkdir -p full; TMPFS=full"},
        hosts={"h3": {"workdir": "full"}},
        wanted=(("h3", "disk", "free", "needs room"),),
    ),
    Row("a full /dev/shm", logins={"h3": "TMPFS=/dev/shm OPTIONS=nr_inodes=1"}),
)

PORTS = (
    Row(
        "another program has the port", holds="h2", wanted=(("h2", "port", "2222 taken", "end that process"),)
    ),
    Row("a run has the port", leases="h2", wanted=(("h2", "port", "2222 taken", "orchestrate stop"),)),
    Row(
        "two entries for one machine",
        hosts={"h4": {"agent_python": "h3-python", "address": "10.77.0.3"}},
        wanted=(("h4", "machine", "is h3 under another name", "give h4 another `task_port`"),),
    ),
)
ROWS = (*NETWORK, *ADDRESSES, *OWN_NAMES, *PACKAGES, *LIMITS, *PORTS)
