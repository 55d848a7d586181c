"""What can be done to a run: each fault strikes once and can be healed, whatever became of it.

    with faults.TaskKilled(scene).struck(): ...

`strike` returns whether there was anything to strike at; `heal` may be called at any time, and twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from tests.chaos.controller import Controller
from tests.chaos.machine import Machine, Process, fill

STUB_EATS = signal.SIGUSR1
STUB_RAISES = signal.SIGUSR2
_ROOM = 24 << 20  # bytes of memory that a container has left when its limit is lowered
_LIMIT = "4g"  # as in docker-compose.yml
_FIND = 5.0  # seconds in which what shall be struck must be there


@dataclass
class Scene:
    """Who is there when a fault strikes."""

    run: str
    controller: Controller
    machines: dict[str, Machine]  # the run's hosts
    bastion: Machine
    victim: Machine
    peer: Machine  # another one of the run
    viewer: subprocess.Popen[bytes]
    spare: Machine | None = None

    def over(self) -> bool:
        return self.controller.ended(self.run)


@dataclass
class Fault:
    """Does nothing, which is what a run must survive first of all."""

    name: ClassVar[str] = "none"
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


def _found(scene: Scene, look: Callable[[], list[Process]]) -> list[Process]:
    """What `look` finds, as soon as it finds something; nothing when the run is over before."""
    deadline = time.monotonic() + _FIND
    while time.monotonic() < deadline:
        if found := look():
            return found
        if scene.over():
            break
        time.sleep(0.005)
    return []


def _signal(processes: list[Process], number: int) -> bool:
    struck = False
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            struck = True
    return struck


# --- processes ---


class TaskKilled(Fault):
    name = "task-kill"
    number: ClassVar[int] = signal.SIGKILL

    def strike(self) -> bool:
        victim, run = self.scene.victim, self.scene.run
        return _signal(_found(self.scene, lambda: victim.tasks(run)), self.number)


class TaskStopped(TaskKilled):
    """It hangs: alive, and silent."""

    name = "task-stop"
    number = signal.SIGSTOP


class TaskHangs(TaskStopped):
    """The same, where no peer looks for heartbeats: the whole gang hangs with it."""

    name = "task-hang"


class TaskRaises(TaskKilled):
    name = "task-exit"
    number = STUB_RAISES


class OutOfMemory(TaskKilled):
    """The task wants more memory than its machine has."""

    name = "oom"
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
    """Bytes that a container uses, by cgroup v1 or v2."""
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


class SupervisorKilled(Fault):
    name = "supervisor-kill"

    def strike(self) -> bool:
        victim, run = self.scene.victim, self.scene.run
        return _signal(_found(self.scene, lambda: victim.supervisors(run)), signal.SIGKILL)


class GuardKilled(Fault):
    name = "guard-kill"

    def strike(self) -> bool:
        victim, run = self.scene.victim, self.scene.run
        return _signal(_found(self.scene, lambda: victim.guards(run)), signal.SIGKILL)


class SupervisorStopped(Fault):
    """It hears nothing any more, and its task goes on; then a user stops the run."""

    name = "supervisor-stop"

    def strike(self) -> bool:
        victim, run = self.scene.victim, self.scene.run
        return _signal(_found(self.scene, lambda: victim.supervisors(run)), signal.SIGSTOP)


class GuardStopped(Fault):
    name = "guard-stop"

    def strike(self) -> bool:
        victim, run = self.scene.victim, self.scene.run
        return _signal(_found(self.scene, lambda: victim.guards(run)), signal.SIGSTOP)


class FolderRemoved(Fault):
    """Somebody makes room in the node's state folder, while the task runs."""

    name = "folder-gone"

    def strike(self) -> bool:
        victim = self.scene.victim
        folder = victim.inside(f"{victim.state}/runs/{self.scene.run}")
        if not folder.is_dir():
            return False
        shutil.rmtree(folder, ignore_errors=True)  # the supervisor may be writing into it
        return True


class AgentKilled(Fault):
    name = "agent-kill"

    def strike(self) -> bool:
        return _signal(_found(self.scene, self.scene.victim.agents), signal.SIGKILL)


class SshdKilled(Fault):
    """The listener and all sessions; the machine starts another one a second later."""

    name = "sshd-kill"

    def strike(self) -> bool:
        return _signal(self.scene.victim.sshds(), signal.SIGKILL)


class KeeperKilled(Fault):
    name = "keeper-kill"

    def strike(self) -> bool:
        keeper = self.scene.controller.keeper(self.scene.run)
        if keeper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
                return True
        return False


# --- machines ---


class Paused(Fault):
    name = "pause"

    def strike(self) -> bool:
        self.scene.victim.docker("pause")
        return True

    def heal(self) -> None:
        self.scene.victim.start()


class PausedLong(Paused):
    name = "pause-long"


class Stopped(Fault):
    """Power off."""

    name = "node-stop"

    def strike(self) -> bool:
        self.scene.victim.docker("kill")
        return True

    def heal(self) -> None:
        self.scene.victim.start()


class Restarted(Fault):
    name = "node-restart"

    def strike(self) -> bool:
        self.scene.victim.docker("restart", "--time", "0")
        return True

    def heal(self) -> None:
        self.scene.victim.start()


# --- links ---


@dataclass
class Rules(Fault):
    """iptables rules in machines' networks, each removed by the heal."""

    _set: list[tuple[Machine, tuple[str, ...]]] = field(default_factory=list)

    def rule(self, machine: Machine, *words: str) -> None:
        machine.in_network("iptables", "-w", "-I", *words)
        self._set.append((machine, words))

    def heal(self) -> None:
        while self._set:
            machine, words = self._set.pop()
            if machine.init:  # a container that was started again has a new network
                with contextlib.suppress(RuntimeError):
                    machine.in_network("iptables", "-w", "-D", *words)


class LinkCut(Rules):
    """Nothing comes in and nothing goes out."""

    name = "link-cut"

    def strike(self) -> bool:
        self.rule(self.scene.victim, "INPUT", "!", "-i", "lo", "-j", "DROP")
        self.rule(self.scene.victim, "OUTPUT", "!", "-o", "lo", "-j", "DROP")
        return True


class LinkCutLong(LinkCut):
    name = "link-cut-long"


class Lossy(Rules):
    """One packet in twenty is lost, both ways."""

    name = "lossy"

    def strike(self) -> bool:
        random = ("-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP")
        self.rule(self.scene.victim, "INPUT", "!", "-i", "lo", *random)
        self.rule(self.scene.victim, "OUTPUT", "!", "-o", "lo", *random)
        return True


class PairCut(Rules):
    """The victim does not hear its peer; the peer hears the victim."""

    name = "pair-cut"

    def strike(self) -> bool:
        self.rule(self.scene.victim, "INPUT", "-s", self.scene.peer.node.address, "-j", "DROP")
        return True


class PairCutLong(PairCut):
    name = "pair-cut-long"


class Split(Rules):
    """Two halves that both live, and both hear the keeper."""

    name = "split"

    def strike(self) -> bool:
        machines = list(self.scene.machines.values())
        near = {self.scene.victim.name, *(one.name for one in machines[::2])} - {self.scene.peer.name}
        for machine in machines:
            for other in machines:
                if (machine.name in near) != (other.name in near):
                    self.rule(machine, "INPUT", "-s", other.node.address, "-j", "DROP")
        return True


class SplitLong(Split):
    name = "split-long"


class KeeperCut(Rules):
    """The controller's own link: no node hears it, nor the bastion."""

    name = "keeper-cut"

    def strike(self) -> bool:
        for machine in (*self.scene.machines.values(), self.scene.bastion):
            gateway = machine.node.address.rpartition(".")[0] + ".1"
            self.rule(machine, "INPUT", "-s", gateway, "-j", "DROP")
        return True


class Slow(Fault):
    """512 kbit/s."""

    name = "slow"

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

    name = "disk-full"

    def strike(self) -> bool:
        self.scene.victim.fill()
        return True

    def heal(self) -> None:
        self.scene.victim.empty()


class ControllerDiskFull(Fault):
    """The disk of the runs' folders."""

    name = "controller-full"

    def strike(self) -> bool:
        fill(self.scene.controller.state)
        return True

    def heal(self) -> None:
        (self.scene.controller.state / "filler").unlink(missing_ok=True)


class ClockJumped(Fault):
    """The wall clock of the controller, an hour forward or back; the one that only counts goes on."""

    name = "clock-jump"

    def strike(self) -> bool:
        back = int(self.scene.victim.name[-1]) % 2
        self.scene.controller.jump(-3600 if back else 3600)
        return True


# --- people ---


@dataclass
class StopAsked(Fault):
    """`orchestrate stop`, at any moment."""

    name: ClassVar[str] = "stop"
    words: ClassVar[tuple[str, ...]] = ("stop",)
    asked: subprocess.Popen[bytes] | None = None

    def strike(self) -> bool:
        self.asked = self.scene.controller.start(self.words[0], self.scene.run, *self.words[1:])
        return True

    def heal(self) -> None:
        if self.asked is not None:
            self.asked.wait(120)


class KillAsked(StopAsked):
    name = "stop-now"
    words = ("stop", "--now")


# --- a host that is lost for good, with what the run may do about it ---


class SpareForStopped(Stopped):
    name = "spare-stop"


class SpareForCut(LinkCut):
    name = "spare-cut"


class SpareGone(Stopped):
    """Power off, of the spare as well."""

    name = "spare-gone"

    def strike(self) -> bool:
        assert self.scene.spare is not None
        self.scene.spare.docker("kill")
        return super().strike()

    def heal(self) -> None:
        assert self.scene.spare is not None
        self.scene.spare.start()
        super().heal()


class SpareAndBack(Paused):
    """Frozen until the spare trains; then it is back, with its old tasks."""

    name = "spare-back"


class SpareAndBackLater(LinkCut):
    """The same, cut off: its old tasks have gone on meanwhile, alone."""

    name = "spare-rejoin"


class FewerAfterStopped(Stopped):
    name = "fewer-stop"


class FewerAfterCut(LinkCut):
    name = "fewer-cut"


class TooFew(Stopped):
    """The run may go on with fewer hosts, but not with so few."""

    name = "too-few"


class SpareForAway(Fault):
    """Power off before the launch; the round sees to that."""

    name = "spare-away"


class FewerForAway(Fault):
    name = "fewer-away"


# --- while the hosts are examined ---


class CheckUndisturbed(Fault):
    name = "check-none"


class CheckSshdKilled(SshdKilled):
    name = "check-sshd"


class CheckStopped(Stopped):
    name = "check-stop"


class CheckCut(LinkCut):
    name = "check-cut"


class CheckKeeperKilled(KeeperKilled):
    name = "check-keeper"


class CheckViewerKilled(Fault):
    """Whoever wants to know how it went on has to ask: `orchestrate tail`."""

    name = "check-viewer"

    def strike(self) -> bool:
        scene = self.scene
        scene.viewer.kill()
        scene.viewer.wait()
        struck = not scene.over()
        self.between()
        scene.viewer = scene.controller.start("tail", scene.run)
        return struck

    def between(self) -> None:
        pass


class CheckBothKilled(CheckViewerKilled):
    """The machine that launched went down, and came back."""

    name = "check-both"

    def between(self) -> None:
        if keeper := self.scene.controller.keeper(self.scene.run):
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)


class SyncDiskFull(NodeDiskFull):
    """The disk of the code, too."""

    name = "sync-full"


FAULTS: tuple[type[Fault], ...] = (
    TaskKilled,
    TaskStopped,
    TaskHangs,
    TaskRaises,
    OutOfMemory,
    SupervisorKilled,
    GuardKilled,
    SupervisorStopped,
    GuardStopped,
    FolderRemoved,
    AgentKilled,
    SshdKilled,
    KeeperKilled,
    Paused,
    PausedLong,
    Stopped,
    Restarted,
    LinkCut,
    LinkCutLong,
    Slow,
    Lossy,
    PairCut,
    PairCutLong,
    Split,
    SplitLong,
    KeeperCut,
    NodeDiskFull,
    ControllerDiskFull,
    ClockJumped,
    StopAsked,
    KillAsked,
    Fault,
    SpareForStopped,
    SpareForCut,
    SpareGone,
    SpareAndBack,
    SpareAndBackLater,
    FewerAfterStopped,
    FewerAfterCut,
    TooFew,
    SpareForAway,
    FewerForAway,
    CheckUndisturbed,
    CheckSshdKilled,
    CheckStopped,
    CheckCut,
    CheckKeeperKilled,
    CheckViewerKilled,
    CheckBothKilled,
    SyncDiskFull,
)
BY_NAME = {fault.name: fault for fault in FAULTS}
