"""Faults of a run: each strikes once and can be healed, whatever happened since.

    with faults.TaskKilled(scene).struck(): ...

`strike` returns whether there was a target; `heal` may be called at any time, even twice.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from tests.chaos.machine import Machine, Process
from tests.processes import send
from tests.ssh.runs.desk import Controller, Viewer

STUB_EATS = signal.SIGUSR1
_ROOM = 24 << 20  # bytes of free memory in a container once its limit is lowered
_LIMIT = "4g"  # as in docker-compose.yml
_FIND = 5.0  # seconds within which the target must appear


@dataclass
class Scene:
    """The machines and the run at the time of a fault."""

    run: str
    controller: Controller
    machines: dict[str, Machine]  # the run's hosts
    bastion: Machine
    victim: Machine
    peer: Machine  # another one of the run
    viewer: Viewer
    spare: Machine | None = None

    def over(self) -> bool:
        return bool(self.controller.named("RunEnded", self.run))


@dataclass
class Fault:
    """Does nothing, which every run must survive."""

    scene: Scene

    def strike(self) -> bool:
        return True

    def heal(self) -> None:
        pass

    @contextlib.contextmanager
    def struck(self) -> Iterator[bool]:
        try:
            yield self.strike()
        finally:
            self.heal()


# --- processes ---


class TaskKilled(Fault):
    """Sends a signal to processes of the victim as soon as they exist, unless the run ends first."""

    number: ClassVar[int] = signal.SIGKILL

    def processes(self) -> list[Process]:
        return self.scene.victim.tasks(self.scene.run)

    def strike(self) -> bool:
        deadline = time.monotonic() + _FIND
        while not (found := self.processes()) and time.monotonic() < deadline and not self.scene.over():
            time.sleep(0.005)
        return bool(send(self.number, [process.pid for process in found]))


class SupervisorKilled(TaskKilled):
    def processes(self) -> list[Process]:
        return self.scene.victim.supervisors(self.scene.run)


class GuardKilled(TaskKilled):
    def processes(self) -> list[Process]:
        return self.scene.victim.guards(self.scene.run)


class AgentKilled(TaskKilled):
    def processes(self) -> list[Process]:
        return self.scene.victim.agents()


class SshdKilled(TaskKilled):
    """Kills the listener and all sessions; the machine restarts sshd a second later."""

    def processes(self) -> list[Process]:
        return self.scene.victim.sshds()


class OutOfMemory(TaskKilled):
    """The task allocates more memory than its machine has."""

    number = STUB_EATS

    def strike(self) -> bool:
        victim = self.scene.victim
        used = _memory(victim)
        limit = str(used + _ROOM)
        victim.docker("update", "--memory", limit, "--memory-swap", limit)
        return super().strike()

    def heal(self) -> None:
        self.scene.victim.docker("update", "--memory", _LIMIT, "--memory-swap", _LIMIT)


def _memory(machine: Machine) -> int:
    """Return the bytes of memory that a container uses, by cgroup v1 or v2."""
    for line in (machine.inside("/proc/1/cgroup")).read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return _number(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")
        if not controllers and os.path.exists(f"/sys/fs/cgroup{path}/memory.current"):  # noqa: PTH110
            return _number(f"/sys/fs/cgroup{path}/memory.current")
    raise RuntimeError(f"{machine.name} has no cgroup for its memory")


def _number(path: str) -> int:
    with open(path) as file:  # noqa: PTH123
        return int(file.read())


class KeeperKilled(Fault):
    def strike(self) -> bool:
        keeper = self.scene.controller.holder(self.scene.run)
        return bool(keeper and send(signal.SIGKILL, [keeper]))


# --- machines ---


class Paused(Fault):
    def strike(self) -> bool:
        self.scene.victim.docker("pause")
        return True

    def heal(self) -> None:
        self.scene.victim.start()


class Stopped(Fault):
    """Power off."""

    def strike(self) -> bool:
        self.scene.victim.docker("kill")
        return True

    def heal(self) -> None:
        self.scene.victim.start()


class Restarted(Fault):
    def strike(self) -> bool:
        self.scene.victim.docker("restart", "--time", "0")
        return True

    def heal(self) -> None:
        self.scene.victim.start()


# --- links ---


@dataclass
class Rules(Fault):
    """Adds iptables rules in machines' networks; `heal` removes each."""

    _set: list[tuple[Machine, tuple[str, ...]]] = field(default_factory=list)

    def rule(self, machine: Machine, *words: str) -> None:
        machine.in_network("iptables", "-w", "-I", *words)
        self._set.append((machine, words))

    def heal(self) -> None:
        while self._set:
            machine, words = self._set.pop()
            if machine.init:  # a restarted container has a new network
                with contextlib.suppress(RuntimeError):
                    machine.in_network("iptables", "-w", "-D", *words)


class LinkCut(Rules):
    """No packet gets in or out."""

    def strike(self) -> bool:
        self.rule(self.scene.victim, "INPUT", "!", "-i", "lo", "-j", "DROP")
        self.rule(self.scene.victim, "OUTPUT", "!", "-o", "lo", "-j", "DROP")
        return True


class Lossy(Rules):
    """One packet in twenty is lost, both ways."""

    def strike(self) -> bool:
        random = ("-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP")
        self.rule(self.scene.victim, "INPUT", "!", "-i", "lo", *random)
        self.rule(self.scene.victim, "OUTPUT", "!", "-o", "lo", *random)
        return True


class PairCut(Rules):
    """Packets of its peer do not reach the victim; the victim's reach the peer."""

    def strike(self) -> bool:
        self.rule(self.scene.victim, "INPUT", "-s", self.scene.peer.node.address, "-j", "DROP")
        return True


class Split(Rules):
    """Splits the cluster into halves that are both alive and connected to the keeper."""

    def strike(self) -> bool:
        machines = list(self.scene.machines.values())
        near = {self.scene.victim.name, *(one.name for one in machines[::2])} - {self.scene.peer.name}
        for machine in machines:
            for other in machines:
                if (machine.name in near) != (other.name in near):
                    self.rule(machine, "INPUT", "-s", other.node.address, "-j", "DROP")
        return True


class KeeperCut(Rules):
    """Cuts the controller's own link to all nodes and the bastion."""

    def strike(self) -> bool:
        for machine in (*self.scene.machines.values(), self.scene.bastion):
            gateway = machine.node.address.rpartition(".")[0] + ".1"
            self.rule(machine, "INPUT", "-s", gateway, "-j", "DROP")
        return True


class Slow(Fault):
    """512 kbit/s."""

    def strike(self) -> bool:
        shape = "tbf rate 512kbit burst 8kb latency 400ms"
        self.scene.victim.in_network("tc", "qdisc", "add", "dev", "eth0", "root", *shape.split())
        return True

    def heal(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.scene.victim.in_network("tc", "qdisc", "del", "dev", "eth0", "root")


# --- disks ---


class NodeDiskFull(Fault):
    """The disk of the node's state: logs, locks, state.json."""

    def strike(self) -> bool:
        self.scene.victim.fill()
        return True

    def heal(self) -> None:
        self.scene.victim.empty()


# --- a permanently lost host, and the run's options ---


class SpareGone(Stopped):
    """Powers off the victim and the spare."""

    def strike(self) -> bool:
        assert self.scene.spare is not None
        self.scene.spare.docker("kill")
        return super().strike()

    def heal(self) -> None:
        assert self.scene.spare is not None
        self.scene.spare.start()
        super().heal()
