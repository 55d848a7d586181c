"""Machines that share only a switch: network namespaces, each with an interface and an agent.

Packets, filters, and addresses are real, and four machines start in a quarter of a second. Faults that need
more than a network (another disk, another user, sshd) belong in `tests/cluster`.
"""

import os
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from orchestrator.connectors import Connectors
from orchestrator.fleet import Fleet
from orchestrator.model import FrameworkName, Host, Job
from orchestrator.phases.preflight import Findings, examine
from orchestrator.store.bus import Bus
from tests.processes import called
from tests.unit import plans

NAMES = ("h1", "h2", "h3", "h4")
PORT = 2222
PATIENCE = 0.8  # seconds for a connection; a healthy neighbor's kernel responds within a millisecond
_WRAPPER = """#!/bin/sh
# The login of {name}: whatever a row wants of it first, then its network.
cd {folder}
MOUNT= TMPFS= OPTIONS=size=150m
[ ! -e {name}.login ] || . ./{name}.login
[ -z "$MOUNT" ] || exec unshare --mount sh -c 'mount --bind "$0" /etc/hosts; exec "$@"' "$MOUNT" \
    nsenter --net=/run/netns/{space} '{python}' "$@"
[ -z "$TMPFS" ] || exec unshare --mount \\
    sh -c 'mount -t tmpfs -o "$0" none "$1"; shift; exec "$@"' "$OPTIONS" "$TMPFS" \\
    nsenter --net=/run/netns/{space} '{python}' "$@"
exec nsenter --net=/run/netns/{space} '{python}' "$@"
"""
# The training Python: a virtual environment, so that pip may install into it, with its own packages.
_TRAINS = """#!/bin/sh
PYTHONPATH={folder}/{name}.site exec '{folder}/venv/bin/python' "$@"
"""


def missing() -> str:
    """Return why such machines cannot be created here, "" if they can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "iptables", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    done = called(["ip", "netns", "add", f"orch-probe-{os.getpid()}"])
    subprocess.run(["ip", "netns", "del", f"orch-probe-{os.getpid()}"], capture_output=True, check=False)
    return done.stderr.strip()


class Ground:
    """Four machines on a switch, 10.77.0.1 to 10.77.0.4, and a separate gateway."""

    gateway = "10.77.0.254"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = f"o{os.getpid() % 100000}"
        self._fleet: Fleet | None = None

    def __enter__(self) -> Self:
        venv.create(self.folder / "venv", symlinks=True)
        commands = [f"ip netns add {self.space('sw')}", f"ip -n {self.space('sw')} link add br0 type bridge"]
        commands += [f"ip -n {self.space('sw')} addr add {self.gateway}/24 dev br0"]
        commands += [f"ip -n {self.space('sw')} link set br0 up"]
        for number, name in enumerate(NAMES, 1):
            space = self.space(name)
            commands += [
                f"ip netns add {space}",
                f"ip -n {space} link set lo up",
                f"ip -n {space} link add eth0 type veth peer name p{number} netns {self.space('sw')}",
                f"ip -n {self.space('sw')} link set p{number} master br0 up",
            ]
            wrapper = self.folder / f"{name}-python"
            text = _WRAPPER.format(name=name, folder=self.folder, space=space, python=sys.executable)
            wrapper.write_text(text)
            wrapper.chmod(0o755)
            trains = self.folder / f"{name}-trains"
            trains.write_text(_TRAINS.format(folder=self.folder, name=name))
            trains.chmod(0o755)
        self.shell("\n".join(commands))
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        for name in (*NAMES, "sw"):
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False, capture_output=True)

    def space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def address(self, name: str) -> str:
        return f"10.77.0.{NAMES.index(name) + 1}"

    def shell(self, script: str) -> None:
        """Run a script in which `on h1 COMMAND` runs on a machine."""
        on = (
            f"on() {{ space={self._mark}-$1; shift; "
            # Some iptables versions have one lock for all networks of a machine, which other workers use too.
            '[ "$1" != iptables ] || { shift; set -- iptables -w "$@"; }; '
            'nsenter --net=/run/netns/$space "$@"; }\n'
        )
        done = called(["sh", "-ec", on + script], cwd=self.folder, timeout=30)
        assert done.returncode == 0, f"{script}\n{done.stderr}"

    def reset(self) -> None:
        """Undo all faults."""
        lines = []
        for number, name in enumerate(NAMES, 1):
            script = f"""
                printf '*filter\\nCOMMIT\\n*nat\\nCOMMIT\\n' | iptables-restore -w
                printf 'addr flush dev lo scope global\\naddr flush dev eth0\\nlink set eth0 mtu 1500 up
                addr add 10.77.0.{number}/24 dev eth0\\nroute add default via {self.gateway}\\n' | ip -batch -
                echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_all
                echo 0 >/proc/sys/net/ipv4/tcp_mtu_probing"""
            lines.append(f"on {name} sh -ec {shlex.quote(script)}")
            (self.folder / f"{name}.login").unlink(missing_ok=True)
            shutil.rmtree(self.folder / f"{name}.site", ignore_errors=True)
        self.shell("\n".join(lines))

    def host(self, name: str, **changes: Any) -> Host:
        made = Host(
            name,
            "local",
            self.address(name),
            python=sys.executable,
            agent_python=str(self.folder / f"{name}-python"),
            workdir=str(self.folder / name / "work"),
            state=str(self.folder / name / "state"),
            task_port=PORT,
        )
        (self.folder / name).mkdir(exist_ok=True)
        return replace(made, **changes)

    def login(self, name: str, script: str) -> None:
        """Set commands that a machine's login runs first."""
        (self.folder / f"{name}.login").write_text(script + "\n")
        self.disconnect()

    def disconnect_changed(self, hosts: Sequence[Host]) -> None:
        """Disconnect hosts whose changed entry needs a different agent."""
        sessions = self._fleet.sessions if self._fleet is not None else {}
        known = {name: session.host for name, session in sessions.items()}
        if any(host.name in known and known[host.name].agent_python != host.agent_python for host in hosts):
            self.disconnect()

    def disconnect(self) -> None:
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None

    def preflight(self, hosts: Sequence[Host], *, trains: bool, framework: FrameworkName) -> Findings:
        command = ("train.py",) if trains else ("true",)
        plan = plans.make(*hosts, job=Job(framework=framework), command=command)
        fleet = self._fleet = self._fleet or Fleet(Connectors(), lambda _frame: None)
        assert fleet.connect([host for host in plan.hosts if host.name not in fleet.sessions]) == {}
        return examine(fleet, Bus().emit, plan, patience=PATIENCE, closely=trains)
