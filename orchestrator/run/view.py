"""A run's state after its events so far, and what its tasks use now, as `status` and the renderers show it.

`apply(view, event, at)` is a fold: replaying `events.jsonl` from `View()` gives the same view again. Log
lines change nothing here, so a flood of them costs nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import reduce
from typing import Any, assert_never

from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.events import Event, Phase, Stamped
from orchestrator.run.fitlines import Fit
from orchestrator.value import Value


class HostState(StrEnum):
    WAITING = "waiting"
    CONNECTED = "connected"
    LOST = "lost"  # no connection: its tasks are unknown, not failed
    FAILED = "failed"


class TaskState(StrEnum):
    PLANNED = "planned"
    STARTED = "started"  # its process runs
    READY = "ready"  # it reported that it is set up
    TRAINING = "training"  # it has reported a step
    UNKNOWN = "unknown"  # its host is lost
    ENDED = "ended"


class PhaseView(Value):
    phase: Phase
    hosts: int
    started: float
    seconds: float | None = None  # None: it continues
    ok: bool = True


class HostView(Value):
    name: str
    state: HostState = HostState.WAITING
    why: str = ""  # for LOST
    since: float = 0.0
    failed: ev.HostFailed | None = None
    checks: tuple[ev.CheckReported, ...] = ()
    made: bool = False  # its environment
    placed: bool = False  # its data
    synced: ev.TreeSynced | None = None
    validated: ev.HostValidated | ev.ValidationStood | None = None


class TaskView(Value):
    task: str
    host: str
    attempt: str = ""
    started: float | None = None
    ready: str | None = None  # its remark, once it is ready
    step: int | None = None
    loss: float | None = None
    steps_per_second: float | None = None
    missing: int = 0  # bytes of its log that the node lost
    exited: ev.TaskExited | None = None


class View(Value):
    planned: ev.RunPlanned | None = None
    began: float = 0.0
    loss: float | None = None  # last reported by a task
    launched: bool = False  # it has started tasks
    phases: tuple[PhaseView, ...] = ()
    hosts: Mapping[str, HostView] = {}
    tasks: Mapping[str, TaskView] = {}
    failures: tuple[ev.AttemptFailed, ...] = ()  # of the attempts before this one
    apart: ev.PeersReported | None = None  # its tasks train separately
    hang: ev.HangSuspected | None = None  # and not passed
    hang_since: float = 0.0  # when those tasks last produced output
    stacks: ev.StacksTaken | None = None  # of that hang
    steps: Mapping[str, ev.Stepped] = {}  # of the current phase, by host, task or controller
    stop: ev.StopRequested | None = None
    stop_asked: float = 0.0
    ended: ev.RunEnded | None = None
    ended_at: float = 0.0

    def state(self, task: TaskView) -> TaskState:
        """Return a task's state; UNKNOWN if its host is lost."""
        if task.exited:
            return TaskState.ENDED
        if task.started is None:
            return TaskState.PLANNED
        host = self.hosts.get(task.host)
        if host and host.state is HostState.LOST:
            return TaskState.UNKNOWN
        if task.step is not None:
            return TaskState.TRAINING
        return TaskState.STARTED if task.ready is None else TaskState.READY

    @property
    def phase(self) -> PhaseView | None:
        return next((phase for phase in reversed(self.phases) if phase.seconds is None), None)


def replay(history: list[Stamped]) -> View:
    """Return the view after all of these."""
    return reduce(lambda view, stamped: apply(view, stamped.event, stamped.at), history, View())


def apply(view: View, event: Event, at: float = 0.0) -> View:
    """Return the view after `event`, which the controller received at `at`."""
    match event:
        case ev.RunPlanned():
            return _with_tasks(replace(view, planned=event, began=view.began or at), event.tasks)
        case ev.PhaseStarted():
            begun = PhaseView(event.phase, event.hosts, at)
            view = replace(_reset_phase(view, event.phase), steps={}, began=view.began or at)
            return replace(view, phases=(*view.phases, begun))
        case ev.PhaseEnded():
            last = max((i for i, phase in enumerate(view.phases) if phase.phase is event.phase), default=None)
            ended = (
                replace(phase, seconds=event.seconds, ok=event.ok) if i == last else phase
                for i, phase in enumerate(view.phases)
            )
            return replace(view, phases=tuple(ended))
        case ev.HostConnected():
            return _host(view, event.host, state=HostState.CONNECTED, failed=None, since=at)
        case ev.HostFailed():
            return _host(view, event.host, state=HostState.FAILED, failed=event, since=at)
        case ev.HostLost():
            host = view.hosts.get(event.host)
            # If it was lost before, only the reason is new.
            since = host.since if host and host.state is HostState.LOST else at
            return _host(view, event.host, state=HostState.LOST, why=event.why, since=since)
        case ev.HostRecovered():
            return _host(view, event.host, state=HostState.CONNECTED, why="", since=at)
        case ev.CheckReported():
            checks = view.hosts[event.host].checks if event.host in view.hosts else ()
            return _host(view, event.host, checks=(*checks, event))
        case ev.TreeSynced():
            return _host(view, event.host, synced=event)
        case ev.Stepped():
            # The controller's own is over.
            steps = {who: step for who, step in view.steps.items() if who}
            return replace(view, steps={**steps, event.who: event})
        case ev.EnvironmentMade():
            return _host(view, event.host, made=True)
        case ev.DataPlaced():
            return _host(view, event.host, placed=True)
        case ev.HostValidated():
            return _host(view, event.host, validated=event)
        case ev.ValidationStood():
            return reduce(lambda phase, name: _host(phase, name, validated=event), event.hosts, view)
        case ev.TaskStarted():
            return _started(view, event, at)
        case ev.TaskReady():
            return _task(view, event.task, ready=event.note)
        case ev.TaskProgressed():  # what a report omits stays as it was
            view = replace(view, loss=view.loss if event.loss is None else event.loss)
            progress = {"step": event.step, "loss": event.loss, "steps_per_second": event.steps_per_second}
            return _task(
                view, event.task, **{key: value for key, value in progress.items() if value is not None}
            )
        case ev.PairReported() | ev.RunAdopted() | ev.RunLeft() | ev.Noted() | ev.LogLine():
            return view
        case ev.HostReplaced() | ev.TaskReported() | ev.HostDescribed():
            return view
        case ev.LogGap():
            if event.where is not ev.GapPlace.NODE:
                return view
            missing = view.tasks[event.task].missing if event.task in view.tasks else 0
            return _task(view, event.task, missing=missing + event.count)
        case ev.TaskExited():
            return _task(view, event.task, exited=event, attempt=event.attempt, host=event.host)
        case ev.HangSuspected():
            return replace(view, hang=event, hang_since=at - event.seconds, stacks=None)
        case ev.StacksTaken():
            return replace(view, stacks=event)
        case ev.PeersReported():
            return replace(view, apart=event if event.apart else None)
        case ev.HangPassed():
            return replace(view, hang=None)
        case ev.AttemptFailed():
            # A keeper that takes over during the pause between two attempts reports it again.
            others = tuple(phase for phase in view.failures if phase.attempt != event.attempt)
            return replace(view, failures=(*others, event), stop=None, hang=None, apart=None)
        case ev.AttemptPlanned():
            return _with_tasks(view, event.tasks)
        case ev.StopRequested():
            return replace(view, stop=event, stop_asked=at)
        case ev.RunEnded():
            return replace(view, ended=event, ended_at=at)
        case _:
            assert_never(event)


def _with_tasks(view: View, placed: tuple[tuple[str, str], ...]) -> View:
    """Return the view with these tasks; host facts stay, except `synced`."""
    tasks = {task: TaskView(task, host) for task, host in placed}
    hosts = {host: replace(view.hosts.get(host, HostView(host)), synced=None) for _, host in placed}
    return replace(view, tasks=tasks, hosts={**view.hosts, **hosts})


def _reset_phase(view: View, phase: Phase) -> View:
    """Return the view without hosts' earlier results of this phase."""
    hosts = {
        name: replace(
            host,
            checks=() if phase is Phase.PREFLIGHT else host.checks,
            validated=ev.ValidationStood((name,), 0.0)  # only hosts that join are validated now
            if phase is Phase.VALIDATE and host.validated
            else host.validated,
            failed=None if host.failed and host.failed.phase is phase else host.failed,
        )
        for name, host in view.hosts.items()
    }
    return replace(view, hosts=hosts)


def _host(view: View, name: str, **changes: Any) -> View:
    host = replace(view.hosts.get(name, HostView(name)), **changes)
    return replace(view, hosts={**view.hosts, name: host})


def _task(view: View, name: str, **changes: Any) -> View:
    task = replace(view.tasks.get(name, TaskView(name, "")), **changes)
    return replace(view, tasks={**view.tasks, name: task})


def _started(view: View, event: ev.TaskStarted, at: float) -> View:
    """Return the view with the task started; a new attempt clears an earlier stop."""
    before = view.tasks.get(event.task)
    if before and before.attempt not in ("", event.attempt):
        view = replace(view, stop=None, hang=None)
    if event.host not in view.hosts:
        view = _host(view, event.host)
    view = replace(view, launched=True)
    fresh = TaskView(event.task, event.host, attempt=event.attempt, started=at)
    return replace(view, tasks={**view.tasks, event.task: fresh})


# --- what its tasks use now: not a history; each measurement replaces the last, and is for viewers only ---


class Vital(Value):
    """One task; unknown values are None."""

    heard: float  # when it last printed or reported anything, seconds since the epoch
    fit: Fit | None = None
    cpu: float | None = None  # number of busy processors
    memory: int | None = None  # bytes
    gpu_memory: int | None = None
    gpu_busy: int | None = None  # percent


class Vitals(Value):
    """All tasks of one attempt, by name."""

    at: float = 0.0  # seconds since the epoch
    attempt: str = ""
    tasks: Mapping[str, Vital] = {}

    def of(self, attempts: Collection[str]) -> Vitals:
        """Return these if they belong to one of these attempts; otherwise nothing."""
        return self if self.attempt in attempts else Vitals()

    def quiet(self, now: float) -> float:
        """Return the seconds since any task produced output; 0 if none is known."""
        return max(0.0, now - max((vital.heard for vital in self.tasks.values()), default=now))
