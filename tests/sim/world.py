"""One history: a seed creates a run, its hosts, and their faults; the real keeper does the rest."""

import hashlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from unittest import mock

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator import timings
from orchestrator.fleet import Fleet
from orchestrator.model import Admission, EarlyImports, Host, Job, OnHang, Order, Restarts, Role, RunPlan
from orchestrator.names import RunId
from orchestrator.node.stock.manifest import Manifest
from orchestrator.node.task import state
from orchestrator.phases import keeper, stage
from orchestrator.phases.context import Run
from orchestrator.phases.loop import Loop
from orchestrator.store import RunFolder, mirror
from orchestrator.store.bus import Bus, EventLog
from orchestrator.sync.contents import Contents
from tests.sim import check
from tests.sim.faults import FAULTS
from tests.sim.network import Network
from tests.sim.node import Conduct, Node, Task
from tests.sim.scheduler import EPOCH, Process, Scheduler, SimulatedClock
from tests.unit import plans

RUN = "20260101-000000-abcd"
_PATIENCE = 900.0  # seconds, after which a user stops a run that still continues
_LIMIT = 4000.0  # seconds within which a history must end
_MOST = 6  # keepers
_CODE = Contents(Manifest([]), [])  # none: the code that is sent is not simulated


class History(Struct):
    """Record of what happened, for the checker."""

    events: list[tuple[int, float, ev.Stamped]] = field(default_factory=list)  # (keeper, time, event)
    problems: list[str] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    armed: tuple[str, ...] = ()
    keepers: int = 0
    asked: float | None = None  # time of the first stop request of a user
    seconds: float = 0.0
    folder: str = ""

    @property
    def digest(self) -> str:
        lines = "\n".join(f"{who} {at!r} {ev.encode(one).decode()}" for who, at, one in self.events)
        return hashlib.sha256(lines.replace(self.folder, "").encode()).hexdigest()[:16]


class World:
    """Everything outside the keeper."""

    def __init__(self, seed: int, folder: Path, only: tuple[str, ...] = ()) -> None:
        self.dice = random.Random(seed)
        # Separate generators, so that histories without an evaluator or a standby do not change.
        self.watching = random.Random(f"evaluator {seed}")
        self.ahead = random.Random(f"standby {seed}")
        self.scheduler = Scheduler(self.dice)
        self.history = History(folder=str(folder))
        self.timings = timings.DEFAULT
        self.length = self.dice.choice([3.0, 15.0, 40.0])
        self.plan = self._plan()
        self.nodes = {host.name: Node(self, host.name) for host in self.plan.members}
        self.folder = RunFolder(folder, RunId(RUN))
        self.fates: list[tuple[str, str, int]] = []  # replies: (effect, host, number of replies before it)
        self.exits: list[tuple[str, str, bool, int]] = []
        self.conducts: list[tuple[str, str, Callable[[World, Task], None]]] = []
        self.on_failure: list[Callable[[], None]] = []
        self.kill_at_a_stop = False
        self.kill_after: list[int] = []
        self.splits = self.full = self.tears = self.kill_again = False
        self.process: Process | None = None
        self.clock: SimulatedClock | None = None
        self.controls: list[int] = []  # keepers so far
        self.over = False
        self._pids = 1000
        self._seen = 0
        own, rare = sorted(name for name in FAULTS if "standby" in name), "keeper-killed-at-a-stop"
        later = ("outage", "stop-in-a-pause", "host-returns-late")  # and the same for faults that came later
        names = self.dice.sample(
            sorted(FAULTS.keys() - {*own, rare, *later}), self.dice.choice([0, 1, 1, 2, 2, 3, 4])
        )
        names += [name for name in later if random.Random(f"{name} {seed}").random() < 0.02]
        names += self.ahead.sample(own, self.ahead.choice([0, 1, 1, 2])) if self.plan.ahead.imports else []
        names += [rare] * (self.watching.random() < 0.05)
        for name in only or names:
            FAULTS[name](self)
        self.history.armed = tuple(only or names)

    def _plan(self) -> RunPlan:
        dice, count = self.dice, self.dice.choice([1, 2, 2, 3, 4])
        chief = count > 1 and dice.random() < 0.3
        hosts = [
            Host(
                f"h{number}",
                f"h{number}",
                f"10.0.0.{number + 1}",
                workdir="/w",
                role=Role.CHIEF if chief and not number else (Role.PS if chief else Role.WORKER),
                tasks=2 if not chief and dice.random() < 0.15 else 1,
            )
            for number in range(count)
        ]
        if chief:
            hosts[1:] = [replace(host, role=Role.WORKER) for host in hosts[1:]]
            if dice.random() < 0.5:
                hosts[-1] = replace(hosts[-1], role=Role.PS) if count > 2 else hosts[-1]
        if self.watching.random() < 0.15:
            hosts.append(Host("e0", "e0", "10.0.2.1", workdir="/w", role=Role.EVALUATOR))
        spares = [
            Host(f"s{number}", f"s{number}", f"10.0.1.{number + 1}", workdir="/w", spare=True)
            for number in range(dice.choice([0, 0, 1, 2]))
        ]
        plan = plans.make(*hosts, job=Job(), command=("python3", "train.py"))
        restarts = Restarts(
            most=dice.choice([0, 0, 1, 3]),
            min_hosts=dice.choice([None, None, max(1, count - 1)]),
            host_timeout=dice.choice([5.0, 60.0, 600.0]),
        )
        return replace(
            plan,
            run=RUN,
            created=EPOCH,
            admission=Admission(preflight=False, validate=False),
            restarts=restarts,
            spares=tuple(spares),
            grace=dice.choice([0.0, 5.0, 30.0]),
            hang_timeout=dice.choice([0.0, 0.0, 20.0]),
            on_hang=dice.choice(list(OnHang)),
            evaluator_timeout=self.watching.choice([0.0, 5.0, 60.0]),
            ahead=EarlyImports(("tensorflow",) if self.ahead.random() < 0.4 else ()),
            keep_warm=self.ahead.choice([0.0, 600.0]),
        )

    # --- called by the nodes and the network ---

    @property
    def now(self) -> float:
        return self.scheduler.now

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.scheduler.after(seconds, call)

    def pid(self) -> int:
        self._pids += 1
        return self._pids

    def hit(self, name: str) -> None:
        self.history.hits[name] += 1

    def problem(self, text: str) -> None:
        self.history.problems.append(f"{self.now:.3f}: {text}")

    def conduct(self, task: Task) -> Conduct:
        made = Conduct(self.dice, self.length)
        task.conduct = made
        for one in [one for one in self.conducts if one[1] == task.node.name]:
            self.conducts.remove(one)
            one[2](self, task)
            self.hit(one[0])
        if task.name.startswith("ps/"):
            made.length = 10_000.0
        if task.name.startswith("evaluator/"):
            made.length = self.watching.choice([self.length, self.length + 20.0, 10_000.0])
        return made

    def started(self, task: Task) -> None:
        check.start(self, task)

    def on_connect(self, node: Node) -> None:
        self._step(node)

    def on_request(self, node: Node, op: str) -> str:
        """Handle a request: decide what happens to its reply."""
        self._step(node)
        for one in [one for one in self.exits if one[0] == op and one[1] == node.name and one[2]]:
            self._exit(one)
        for number, (fate, name, left) in enumerate(self.fates):
            if name == node.name and op != "vitals_ask":  # nothing waits for its reply
                self.fates[number] = fate, name, left - 1
                if left <= 0 and op != "ping":
                    del self.fates[number]
                    self.hit(fate)
                    return fate
                break
        return ""

    def answered(self, node: Node, op: str) -> None:
        """A request was served, and its reply is about to be sent."""
        for one in [one for one in self.exits if one[0] == op and one[1] == node.name and not one[2]]:
            self._exit(one)

    def _exit(self, one: tuple[str, str, bool, int]) -> None:
        living = [task for task in self.nodes[one[1]].tasks if task.alive]
        if living:
            self.exits.remove(one)
            self.hit("task-exits-while-asked")
            living[0].leave(one[3])

    def _step(self, node: Node) -> None:
        del node
        self._seen += 1
        if self.kill_after and 0 <= self.kill_after[0] <= self._seen:
            self.kill_after.pop(0)
            self._seen = 0
            self.after(0.0, lambda: self.kill("keeper-killed"))

    # --- the controller's machine ---

    def begin(self) -> None:
        self.folder.create(self.plan)
        self._keeper(new=True, stop=None)
        self.after(_PATIENCE, lambda: self.order(Order.STOP))
        self.after(_PATIENCE + 300.0, lambda: self.order(Order.KILL))

    def _keeper(self, *, new: bool, stop: Order | None) -> None:
        self.history.keepers += 1
        number = self.history.keepers
        process = self.process = Process(f"keeper {number}")
        clock = self.clock = SimulatedClock(self.scheduler, process)

        def life() -> None:
            plan = self.plan if new else self.folder.read_plan()
            loop = Loop(clock)
            log = EventLog(self.folder, clock)
            emit = Bus(log, lambda stamped: self._record(number, process, stamped), clock=clock).emit
            fleet = Fleet(Network(self, process), loop.put, self.timings, loop)
            run = Run(
                self.folder, plan, emit, fleet, loop, f"me, keeper {number}", None, timings=self.timings
            )
            if new:
                run.staged.reading = Future()
                run.staged.reading.set_result((_CODE, ["", "", ""]))
            if stop is not None:
                run.stop.ask(kill=stop is Order.KILL)
            self.controls.append(self.folder.open_control())
            keeper.keep(run, self.controls[-1], new=new)
            log.finish()
            self._exited(process)

        self.scheduler.start(process, process.name, life)

    def _record(self, number: int, process: Process, stamped: ev.Stamped) -> None:
        if not process.alive:
            return
        event = stamped.event
        self.history.events.append((number, self.now, stamped))
        if isinstance(event, ev.AttemptFailed):
            for strike in self.on_failure:
                strike()
            self.on_failure.clear()
        if isinstance(event, ev.HostConnected | ev.HostRecovered):
            node, planned = self.nodes[event.host], self.folder.read_plan().attempt
            self.after(5.0, lambda: check.back(self, node, planned, self.now - 5.0))
        if isinstance(event, ev.StopRequested) and self.kill_at_a_stop:
            self.kill_at_a_stop = False
            self.kill("keeper-killed-at-a-stop")
        if isinstance(event, ev.RunEnded):
            check.end(self, event)

    def kill(self, name: str) -> None:
        """Kill the keeper as by SIGKILL: it stops running, and its connections are closed."""
        process = self.process
        if process is None or not process.alive or self.over:
            return
        if self.tears and (size := self.folder.events.stat().st_size) > 40:
            self.hit("keeper-killed-in-a-write")
            os.truncate(self.folder.events, size - self.dice.randint(2, 30))  # more than its newline
            kept = [
                n
                for n, one in enumerate(self.history.events)
                if not isinstance(one[2].event, ev.TaskProgressed)
            ]
            del self.history.events[kept[-1]]
        self.hit("keeper-killed-again" if self.kill_again and self.history.keepers > 1 else name)
        self._ends(process)
        order = self.dice.choice([None, None, None, Order.STOP, Order.KILL])
        self.after(self.dice.choice([0.5, 3.0, 30.0, 200.0]), lambda: self._again(order))

    def _ends(self, process: Process) -> None:
        process.alive = False
        self.process = None
        for node in self.nodes.values():
            for channel in node.channels:
                if channel.process is process:
                    channel.close()

    def _exited(self, process: Process) -> None:
        last = self.history.events[-1][2].event
        self._ends(process)
        if isinstance(last, ev.RunEnded) and not last.unproven:
            self.over = True
        elif isinstance(last, ev.RunEnded):  # a user follows the advice once the hosts respond
            self.after(60.0, lambda: self._again(Order.STOP))
        elif isinstance(last, ev.RunLeft):
            order = self.dice.choice([None, Order.STOP])
            self.after(30.0, lambda: self._again(order))
        else:
            self.problem(f"a keeper left after {type(last).__name__}")
            self.over = True

    def _again(self, order: Order | None) -> None:
        if self.process is not None or self.over:
            return
        last = self.history.events[-1][2].event if self.history.events else None
        if isinstance(last, ev.RunEnded) and not last.unproven:  # it was killed during its last steps
            self.over = True
            return
        if self.history.keepers >= _MOST:
            self.over = True
            return
        if order is not None:
            self._user_asks()
        if self.history.keepers > 2:  # eventually all faults are gone
            for node in self.nodes.values():
                node.up, node.trouble, node.slow, node.full = True, "", 1.0, False
            self.full = False
        self._keeper(new=False, stop=order)

    def _user_asks(self) -> None:
        if self.history.asked is None:
            self.history.asked = self.now

    def order(self, order: Order) -> None:
        """Send a viewer's request to the keeper; a dead keeper is replaced by one that stops the run."""
        if self.over:
            return
        self._user_asks()
        if self.process is not None and self.clock is not None and self.controls:
            self.folder.ask_keeper(order)
            self.clock.written.add(self.controls[-1])

    def stop_elsewhere(self) -> None:
        self._user_asks()
        for node in self.nodes.values():
            for run, tasks in node.runs.items():
                if node.up:
                    node.stopped.add(run)
                    for task in tasks.values():
                        task.ask(state.WANT_STOP, self.plan.grace)


def play(seed: int, only: tuple[str, ...] = ()) -> History:
    """Play one history, and check it."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="orchestrate-sim-", dir=memory if memory.is_dir() else None))
    world = World(seed, root, only)
    with (
        mock.patch.object(mirror, "has_room", partial(_room, world)),
        mock.patch.object(stage, "read_builtin", return_value=_CODE),
    ):
        return _play(world)


def _play(world: World) -> History:
    try:
        world.begin()
        ended = world.scheduler.run(lambda: world.over, _LIMIT)
        if not ended:
            last = world.history.events[-1][2].event if world.history.events else None
            world.problem(f"no end within {_LIMIT:.0f} s: a wait without a deadline; last: {last}")
        check.whole(world)
        world.history.problems += world.scheduler.failures
        world.history.seconds = world.now
        return world.history
    finally:
        world.scheduler.end()
        for control in world.controls:
            os.close(control)
        shutil.rmtree(world.folder.root, ignore_errors=True)


def _room(world: World, _folder: Path) -> bool:
    if world.full:
        world.hit("controller-disk-full")
    return not world.full
