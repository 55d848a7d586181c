"""The state that the phases of one run share."""

import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeAlias

from msgspec import Struct, field

from orchestrator import slurm, wire
from orchestrator.clock import Clock
from orchestrator.errors import HostError, OrchestrateError, RunError, Trouble, of_this_machine
from orchestrator.events import Event, HostFailed, Phase, PhaseEnded, PhaseStarted
from orchestrator.fleet import Fleet, Session
from orchestrator.model import Host, RunPlan
from orchestrator.phases.loop import Loop
from orchestrator.ranges import grouped
from orchestrator.store import RunFolder
from orchestrator.store.known import Validations, state_root
from orchestrator.store.points import PointFile
from orchestrator.sync.contents import CodeSource, Contents
from orchestrator.text import count
from orchestrator.timings import DEFAULT, Timings

log = logging.getLogger("orchestrate")
Emit: TypeAlias = Callable[[Event], None]
_EVERY = 3.0  # seconds between two queries of Slurm


def unforeseen(doing: str, error: Exception) -> OrchestrateError | None:
    """Log an exception, with its traceback if it is a bug; return a failure of this machine as our error."""
    here = of_this_machine(error)
    if here is None:
        log.error("a bug: %s", doing, exc_info=error)
    else:
        log.error("%s: %s", doing, here.in_one_line)
    return here


class StopFlag(threading.Event):
    """A request to end the run, which the keeper's thread sets and reads."""

    kill = False
    at: float | None = None  # seconds since the epoch, if an earlier keeper received it

    def ask(self, *, kill: bool, at: float | None = None) -> None:
        self.kill = self.kill or kill
        self.at = self.at or at
        self.set()

    @property
    def requested(self) -> bool:
        return self.is_set()


class StagedCode(Struct):
    """Code as it was staged on the hosts, and where the tasks run in it."""

    reading: Future[tuple[Contents, list[str]]] | None = None  # the user's code, and its git state
    trees: list[Contents] = []  # on every host: that code and worker_entry
    work: dict[str, str] = {}  # host -> absolute cwd
    made: set[str] = set()  # hosts whose work folder was created for the coming attempt
    shared: dict[str, str] = {}  # host -> the first one with the same workdir
    lone: str = ""  # a warning: only one host has a checkpoint


class PlacedData(Struct):
    """The data in [data], read once on this machine, and the variables with its folder, by host."""

    contents: Contents | None = None
    env: dict[str, dict[str, str]] = {}


class Run(Struct):
    """One run owned by its keeper: fixed values, the plan, the fleet, and what each phase adds."""

    folder: RunFolder
    plan: RunPlan
    emit: Emit  # its last event is the end of the run
    fleet: Fleet
    loop: Loop
    who: str  # this keeper, as shown to others
    source: CodeSource | None  # None in a keeper that took over: the code is on the hosts
    secrets: Mapping[str, str] = {}
    timings: Timings = DEFAULT
    key: bytes | None = None  # seals the user's plans
    validations: Validations = field(default_factory=lambda: Validations(state_root() / "validated"))
    stop: StopFlag = field(default_factory=StopFlag)
    staged: StagedCode = field(default_factory=StagedCode)
    placed: PlacedData = field(default_factory=PlacedData)
    since_lost: dict[str, float] = {}  # host that `recovery` retries -> when it was lost (monotonic)
    facts: dict[str, wire.MachineFacts] = {}  # by host, from its last preflight
    leased: dict[str, Session] = {}  # host -> the session whose agent holds its ports
    followed: dict[str, tuple[Session, Future[wire.Unknown]]] = {}  # host -> `follow` sent with the start
    fate: tuple[float, slurm.Fate] = (-math.inf, slurm.Fate())  # when Slurm was queried, and its reply
    code_read: Callable[[], None] = lambda: None  # called when later edits of the code have no effect
    points: PointFile | None = None  # metrics of the tasks
    usage: PointFile | None = None  # resources that tasks use on each host
    alive: set[str] = set()  # hosts where tasks could not be ended
    started: bool = False  # parts of the run may be alive on the nodes
    prepared: bool = False  # all hosts of an attempt were ready to start their tasks
    watched: float = -math.inf  # when a viewer last reported that it shows the tasks (monotonic)

    @property
    def clock(self) -> Clock:
        return self.loop

    def replan(self, plan: RunPlan, *, required: bool = True) -> None:
        """Continue with another plan, stored for a takeover; raise RunError if that fails and is required."""
        self.plan = plan
        try:
            self.folder.write_plan(plan)
        except RunError as error:
            if required:
                raise
            log.warning("%s: %s", error.what, error.why)

    @property
    def id(self) -> str:
        return self.plan.run

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.plan.hosts

    @property
    def lost(self) -> dict[str, float]:
        """Return the lost hosts with tasks, each with the time of its loss (monotonic)."""
        since = self.since_lost
        return {host.name: since[host.name] for host in self.hosts if host.name in since}

    @property
    def job(self) -> str:
        """Return the Slurm job of the hosts; "" if they are not Slurm nodes."""
        return next((host.job for host in self.hosts if host.job), "")

    def allocation(self, *, now: bool = False) -> slurm.Fate:
        """Return Slurm's state of the run's job and nodes; empty for a run without a job.

        A job that is over remains so, even if Slurm does not reply later.
        """
        at, state = self.fate
        if self.job and (now or self.clock.now() - at > _EVERY):
            latest = slurm.look(self.job, {host.ssh for host in self.hosts if host.job})
            state = latest if latest.over or not state.over else state
            self.fate = self.clock.now(), state
        return state

    def taken(self) -> dict[str, str]:
        """Return the lost hosts that, according to Slurm, will not come back, each with the reason."""
        if not self.lost:
            return {}
        fate = self.allocation()
        why = {host.name: fate.over or fate.down.get(host.ssh, "") for host in self.hosts}
        return {name: why[name] for name in self.lost if why[name]}

    @property
    def names(self) -> list[str]:
        """Return the connected hosts with tasks."""
        return [host.name for host in self.plan.hosts if host.name in self.fleet.sessions]


@dataclasses.dataclass(eq=False)
class PhaseFailed(Exception):  # noqa: N818 - how a phase ends, caught by the keeper
    """The run cannot continue; the events that give the reason were already emitted."""

    phase: Phase
    cause: str
    hint: str = ""
    hosts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # host -> its problem
    _: dataclasses.KW_ONLY
    outside: bool = False  # an external cause, such as a lost host: may not happen again
    here: bool = False  # a failure of this machine; no host is to blame


@contextmanager
def phase(run: Run, which: Phase) -> Iterator[None]:
    """Report when a phase starts and how it ended."""
    began = run.clock.now()
    run.emit(PhaseStarted(which, len(run.hosts)))
    try:
        yield
    except BaseException:
        run.emit(PhaseEnded(which, ok=False, seconds=run.clock.now() - began))
        raise
    run.emit(PhaseEnded(which, ok=True, seconds=run.clock.now() - began))


def report_failures(emit: Emit, phase: Phase, errors: Mapping[str, HostError]) -> None:
    """Emit the errors, host by host."""
    for name, error in errors.items():
        log.error("%s: %s %s: %s", phase.value, name, error.what, error.why)
        emit(HostFailed(name, phase, error.kind, error.what, error.why, error.hint))


def fail_on(run: Run, phase: Phase, errors: Mapping[str, HostError]) -> None:
    """Emit the errors and raise PhaseFailed, if there are any."""
    report_failures(run.emit, phase, errors)
    if errors:
        raise failure(phase, list(errors.values()))


def failure(phase: Phase, errors: Sequence[HostError]) -> PhaseFailed:
    """Describe a failed phase by its most frequent error; of equally frequent ones, by the first."""
    alike = max(grouped((error.what, error) for error in errors).values(), key=len)
    first, differ = alike[0], len(errors) - len(alike)
    others = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
    causes = {error.host: error.what for error in reversed(errors)}
    outside = any(error.lost or error.kind in (Trouble.TIMEOUT, Trouble.STATE) for error in errors)
    here = all(error.kind == Trouble.HERE for error in errors)
    otherwise = f"; {count(differ, 'host')} failed for other reasons" if differ else ""
    cause = f"{first.host}{others} {first.what}{otherwise}"
    return PhaseFailed(phase, cause, first.hint, causes, outside=outside, here=here)
