"""What stands at the bottom of a live display: the phase, and each task's step and loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from orchestrator import ranges
from orchestrator.ends import end_after, failed
from orchestrator.events import HangSuspected, Phase
from orchestrator.render import fold
from orchestrator.text import count, duration, plain
from orchestrator.view import HostState, HostView, PhaseView, TaskState, TaskView, View

Cell: TypeAlias = tuple[str, str]  # text and the name of a style
Row: TypeAlias = tuple[Cell, ...]

QUIET = 30.0  # seconds without a step after which a task is said to be quiet

_STYLES = {
    TaskState.PLANNED: "dim",
    TaskState.STARTED: "",
    TaskState.READY: "",
    TaskState.TRAINING: "green",
    TaskState.UNKNOWN: "yellow",
    TaskState.ENDED: "dim",
}

_DONE: dict[Phase, Callable[[HostView], bool]] = {
    Phase.CONNECT: lambda host: host.state is not HostState.WAITING,
    Phase.PREFLIGHT: lambda host: bool(host.checks),
    Phase.STAGE: lambda host: host.synced is not None,
    Phase.VALIDATE: lambda host: host.validated is not None,
}


def region(view: View, now: float, height: int) -> list[Row]:
    """At most `height` rows; none once the run has ended, its summary says it all."""
    if view.ended or not (view.planned or view.phases):
        return []
    head = _head(view, now)
    if all(task.started is None for task in view.tasks.values()):
        return [head]
    rows = [_task(view, task, now) for task in view.tasks.values()]
    if len(rows) >= height:
        rows = _folded(view)
    return [head, *_aligned(rows)][:height]


def _head(view: View, now: float) -> Row:
    name = f"run {view.planned.run}  " if view.planned else ""
    left = [task for task in view.tasks.values() if task.started is not None and not task.exited]
    if view.stop and left:
        until = view.stop_asked + view.stop.grace - now
        how = f"waiting for TERM, {math.ceil(until)} s" if until > 0 else "waiting for KILL"
        return ((name, "bold"), (f"stopping: {how}: {ranges.fold(task.task for task in left)}", "yellow"))
    if view.hang:
        return ((name, "bold"), (hanging(view.hang), "yellow"))
    phase = view.phase
    if phase is None:
        return ((name, "bold"), (duration(now - view.began), "dim"))
    return (
        (name, "bold"),
        (f"{doing(phase.phase)}: {_progress(view, phase)}", ""),
        (_since(now - phase.started), "dim"),
    )


def hanging(hang: HangSuspected) -> str:
    """Said until somebody is heard of again."""
    return f"{'behind' if hang.kind == 'lagging' else 'silent'}, perhaps hanging: {ranges.fold(hang.tasks)}"


def doing(phase: Phase) -> str:
    """A phase as a state of the run: to us tasks are followed, to a person they run."""
    return "running" if phase is Phase.FOLLOW else str(phase)


def _since(seconds: float) -> str:
    """The time that a phase takes: whole seconds, so that the eye is not drawn to it."""
    return f"  {duration(max(10.0, seconds))}" if seconds >= 9.95 else f"  {max(0, int(seconds))} s"


def _progress(view: View, phase: PhaseView) -> str:
    if phase.phase not in _DONE:
        left = sum(not task.exited for task in view.tasks.values())
        return f"{count(left, 'task')}" if left == len(view.tasks) else f"{left} of {len(view.tasks)} tasks"
    done = _DONE[phase.phase]
    waiting = [
        host.name for host in view.hosts.values() if not done(host) and host.state is not HostState.FAILED
    ]
    if len(waiting) in (0, phase.hosts):
        return count(phase.hosts, "host")
    return f"{phase.hosts - len(waiting)} of {phase.hosts} hosts, waiting for {fold.names(waiting)}"


def _task(view: View, task: TaskView, now: float) -> Row:
    state = view.state(task)
    return (
        (task.task, "task"),
        (task.host, ""),
        (str(state), _STYLES[state]),
        (_told(view, task, state, now), "red" if _failed(task) else ""),
    )


def _failed(task: TaskView) -> bool:
    return task.exited is not None and failed(task.exited)


def _told(view: View, task: TaskView, state: TaskState, now: float) -> str:
    """What is known of a task, in the words that fit its state."""
    if task.exited:
        return end_after(task.exited)
    if state is TaskState.UNKNOWN:
        host = view.hosts[task.host]
        return plain(f"no word from its host for {duration(now - host.since)} ({host.why})")
    if task.step is None:
        return plain(task.ready or "")
    quiet = now - task.stepped
    return numbers([task]) + (f"  none for {duration(quiet)}" if quiet > QUIET else "")


def numbers(tasks: Iterable[TaskView]) -> str:
    """Step, loss and speed, from the least to the most where they differ."""
    training = [task for task in tasks if task.step is not None]
    steps = [task.step for task in training if task.step is not None]
    losses = [task.loss for task in training if task.loss is not None]
    rates = [task.steps_per_second for task in training if task.steps_per_second is not None]
    said = [f"step {_between(f'{min(steps):,}', f'{max(steps):,}')}"] if steps else []
    said += [f"loss {_between(_loss(min(losses)), _loss(max(losses)))}"] if losses else []
    said += [f"{_between(f'{min(rates):.1f}', f'{max(rates):.1f}')} steps/s"] if rates else []
    return "  ".join(said)


def _loss(loss: float) -> str:
    """Four digits after the point, or the number's own way when that would show nothing."""
    return f"{loss:.4f}" if loss == 0 or 0.001 <= abs(loss) < 1e6 else f"{loss:.3e}"


def _between(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _folded(view: View) -> list[Row]:
    """A row per state, when there are more tasks than room."""
    groups: dict[TaskState, list[TaskView]] = {}
    for task in view.tasks.values():
        groups.setdefault(view.state(task), []).append(task)
    return [
        (
            (ranges.fold(task.task for task in tasks), ""),
            (count(len(tasks), "task"), "dim"),
            (str(state), _STYLES[state]),
            (numbers(tasks) if state is TaskState.TRAINING else "", ""),
        )
        for state, tasks in groups.items()
    ]


def _aligned(rows: list[Row]) -> list[Row]:
    """The rows with their columns below each other."""
    widths = [max(len(row[column][0]) for row in rows) for column in range(3)]
    return [
        (*((f"{text:<{width}}  ", style) for (text, style), width in zip(row, widths, strict=False)), row[3])
        for row in rows
    ]
