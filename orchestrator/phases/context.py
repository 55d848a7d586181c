"""The state that the phases of one run share."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeAlias

from msgspec import Struct, field

from orchestrator import wire
from orchestrator.clock import Clock
from orchestrator.errors import HostError, Trouble
from orchestrator.events import Event, HostFailed, Phase, PhaseEnded, PhaseStarted
from orchestrator.fleet import Fleet, Session
from orchestrator.model import Host, RunPlan
from orchestrator.phases.loop import Loop
from orchestrator.slurm import Fate
from orchestrator.store import RunFolder
from orchestrator.store.known import Validations, state_root
from orchestrator.store.points import PointFile
from orchestrator.sync.contents import CodeSource, Contents
from orchestrator.timings import DEFAULT, Timings

log = logging.getLogger("orchestrate")
Emit: TypeAlias = Callable[[Event], None]


class StopFlag(threading.Event):
    """A request for the end of the run, which the keeper's thread sets and reads."""

    kill = False

    def ask(self, *, kill: bool) -> None:
        self.kill = self.kill or kill
        self.set()

    @property
    def asked(self) -> bool:
        return self.is_set()


class StagedCode(Struct):
    """Code as the stage has brought it to hosts, and where the tasks work there."""

    reading: Future[tuple[Contents, list[str]]] | None = None  # the user's code, and what git says of it
    trees: list[Contents] = []  # that every host has: that code and worker_entry
    work: dict[str, str] = {}  # host -> absolute cwd
    made: set[str] = set()  # hosts whose cwd was made again, for the coming attempt
    shared: dict[str, str] = {}  # host -> the first one that sees the same workdir


class PlacedData(Struct):
    """Data of [data]: read here once, and where the tasks of each host find it."""

    contents: Contents | None = None
    env: dict[str, dict[str, str]] = {}


class HostLosses(Struct):
    """Hosts that are lost, while they are tried again; `phases.restart.recovery` fills it."""

    since: dict[str, float] = {}  # monotonic
    unkept: set[str] = set()  # back, and do not hold us for the keeper yet


class Run(Struct):
    """One run in the hands of its keeper: what is fixed, the plan and the fleet, and what each phase owns."""

    folder: RunFolder
    plan: RunPlan
    emit: Emit  # whose last event is the run's end
    fleet: Fleet
    loop: Loop
    who: str  # this keeper, as others are told
    source: CodeSource | None  # a keeper that takes over finds the code on the hosts
    secrets: Mapping[str, str] = {}
    timings: Timings = DEFAULT
    key: bytes | None = None  # with which the user's plans are sealed
    validations: Validations = field(default_factory=lambda: Validations(state_root() / "validated"))
    stop: StopFlag = field(default_factory=StopFlag)
    staged: StagedCode = field(default_factory=StagedCode)
    placed: PlacedData = field(default_factory=PlacedData)
    losses: HostLosses = field(default_factory=HostLosses)
    gpus: dict[str, wire.GpuLook] = {}  # of each host, at its last preflight
    leased: dict[str, Session] = {}  # host -> whose agent holds its ports
    fate: tuple[float, Fate] = (-math.inf, Fate())  # when Slurm was asked (monotonic), and its answer
    points: PointFile | None = None  # of the training
    alive: set[str] = set()  # hosts where tasks could not be ended
    started: bool = False  # something of the run may be alive on the nodes
    watched: float = -math.inf  # when a viewer last said that it looks at the tasks (monotonic)

    @property
    def clock(self) -> Clock:
        return self.loop

    @property
    def id(self) -> str:
        return self.plan.run

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.plan.hosts

    @property
    def lost(self) -> dict[str, float]:
        """The hosts with tasks that are lost, each with since when (monotonic)."""
        since = self.losses.since
        return {host.name: since[host.name] for host in self.hosts if host.name in since}

    @property
    def names(self) -> list[str]:
        """The hosts with tasks that can be asked something."""
        return [host.name for host in self.plan.hosts if host.name in self.fleet.sessions]


@dataclasses.dataclass(eq=False)
class PhaseFailed(Exception):  # noqa: N818 - how a phase ends, caught by the keeper
    """The run cannot continue; the events that say why were emitted already."""

    phase: Phase
    cause: str
    hint: str = ""
    hosts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what is wrong with which
    _: dataclasses.KW_ONLY
    outside: bool = False  # it need not come again: a host was lost over it
    here: bool = False  # this machine could not do its part, no host is to blame


@contextmanager
def phase(run: Run, which: Phase) -> Iterator[None]:
    """Say when a phase starts and how it ended."""
    began = run.clock.now()
    run.emit(PhaseStarted(which, len(run.hosts)))
    try:
        yield
    except BaseException:
        run.emit(PhaseEnded(which, ok=False, seconds=run.clock.now() - began))
        raise
    run.emit(PhaseEnded(which, ok=True, seconds=run.clock.now() - began))


def report_failures(emit: Emit, phase: Phase, errors: Mapping[str, HostError]) -> None:
    """Emit what went wrong, host by host."""
    for name, error in errors.items():
        log.error("%s: %s %s: %s", phase.value, name, error.what, error.why)
        emit(HostFailed(name, phase, error.kind, error.what, error.why, error.hint))


def fail_on(run: Run, phase: Phase, errors: Mapping[str, HostError]) -> None:
    """Emit the errors and raise PhaseFailed, if there are any."""
    report_failures(run.emit, phase, errors)
    if errors:
        raise failure(phase, list(errors.values()))


def failure(phase: Phase, errors: Sequence[HostError]) -> PhaseFailed:
    """Word a phase that cannot be finished by what is wrong with its hosts, the first error first."""
    first = errors[0]
    others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    found = {error.host: error.what for error in reversed(errors)}
    outside = any(error.lost or error.kind == Trouble.TIMEOUT for error in errors)
    here = all(error.kind == Trouble.HERE for error in errors)
    cause = f"{first.host}{others} {first.what}"
    return PhaseFailed(phase, cause, first.hint, found, outside=outside, here=here)
