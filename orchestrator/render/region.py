"""The bottom of a live display, below a line: the phase, or the tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from orchestrator import ranges
from orchestrator.events import CodeSending, HangKind, HangSuspected, Phase
from orchestrator.groups import grouped
from orchestrator.names import is_validation
from orchestrator.render import fold
from orchestrator.render.board import Row, table
from orchestrator.render.wrap import wrapped
from orchestrator.run.view import HostState, HostView, PhaseView, View
from orchestrator.run.vitals import Vitals
from orchestrator.text import count, duration, plain, size

_RULE = "\u2500"
_BAR = 24  # cells

_DONE: dict[Phase, Callable[[HostView], bool]] = {
    Phase.CONNECT: lambda host: host.state is not HostState.WAITING,
    Phase.PREFLIGHT: lambda host: bool(host.checks),
    Phase.STAGE: lambda host: host.synced is not None,
    Phase.VALIDATE: lambda host: host.validated is not None,
}


def region(view: View, now: float, height: int, width: int, vitals: Vitals = Vitals()) -> list[Row]:  # noqa: B008
    """At most `height` rows of `width` cells; none once the run has ended, its summary says it all."""
    if view.ended or not (view.planned or view.phases):
        return []
    if any(task.started is not None for task in view.tasks.values()):  # no longer those of the validation
        vitals = vitals.of({task.attempt for task in view.tasks.values()})
    rows = [_rule(view, now, width)]
    rows += [
        ((line, style),) for text, style in _troubles(view, now, vitals) for line in wrapped([text], width)
    ]
    left = height - len(rows)
    if all(task.started is None for task in view.tasks.values()):
        vitals = vitals if is_validation(vitals.attempt) else Vitals()
        rows += _phase(view, vitals, width)
    elif left > 0:
        rows += table(view, vitals, now, left, width)
    return rows[:height]


def _rule(view: View, now: float, width: int) -> Row:
    """The line that sets the board apart from the log, with the run and what it does."""
    name = f"run {view.planned.run} " if view.planned else ""
    state = f"{_doing(view, now)} "
    rest = _RULE * max(0, width - 3 - len(name) - len(state))
    return ((f"{_RULE * 2} ", "dim"), (name, "bold"), (state, ""), (rest, "dim"))


def _doing(view: View, now: float) -> str:
    phase = view.phase
    left = sum(not task.exited for task in view.tasks.values())
    if view.stop and left:
        return f"stopping, {_since(now - view.stop_asked)}"
    if phase is None:
        return duration(now - view.began)
    if phase.phase in _DONE or phase.phase is Phase.SETUP:
        return f"{doing(phase.phase)}, {_since(now - phase.started)}"
    tasks = count(left, "task") if left == len(view.tasks) else f"{left} of {len(view.tasks)} tasks"
    return f"{doing(phase.phase)}: {tasks}, {_since(now - phase.started)}"


def doing(phase: Phase) -> str:
    """A phase as a state of the run: to us tasks are followed, to a person they run."""
    return "running" if phase is Phase.FOLLOW else str(phase)


def _since(seconds: float) -> str:
    """The time that a phase takes: whole seconds, so that the eye is not drawn to it."""
    return duration(max(10.0, seconds)) if seconds >= 9.95 else f"{max(0, int(seconds))} s"


def _troubles(view: View, now: float, vitals: Vitals) -> list[tuple[str, str]]:
    """Word what is waited for, and what may be wrong."""
    rows = []
    left = [task for task in view.tasks.values() if task.started is not None and not task.exited]
    if view.stop and left:
        until = view.stop_asked + view.stop.grace - now
        how = f"KILL in {math.ceil(until)} s" if until > 0 else "waiting for KILL"
        sooner = "; sooner: Ctrl-C again, or stop --now" if until > 0 else ""
        rows.append((f"waiting for {ranges.fold(task.task for task in left)}: {how}{sooner}", "yellow"))
    elif view.hang:
        seconds = vitals.quiet(now) if vitals.tasks else now - view.hang_since
        said = hanging(view.hang, seconds, view.planned.run if view.planned else "RUN")
        rows.append((said, "yellow"))
    return rows


def hanging(hang: HangSuspected, seconds: float = 0.0, run: str = "RUN") -> str:
    """Said until somebody is heard of again."""
    if hang.kind is HangKind.QUIET:
        for_long = duration(max(seconds, hang.seconds))
        return f"no word from anybody for {for_long}; `orchestrate stacks {run}` shows where they stand"
    how = "behind" if hang.kind is HangKind.LAGGING else "silent"
    return f"{how}, perhaps hanging: {ranges.fold(hang.tasks)}"


def _phase(view: View, vitals: Vitals, width: int) -> list[Row]:
    """The phase that goes on, with a bar, and whom it waits for."""
    phase = view.phase
    if phase is None:
        return []
    if phase.phase is Phase.SETUP:
        return _setup(view, width)
    if phase.phase is Phase.DATA:
        return _data(view, phase, width)
    if phase.phase not in _DONE:
        return []
    done = _DONE[phase.phase]
    waiting = [
        host.name for host in view.hosts.values() if not done(host) and host.state is not HostState.FAILED
    ]
    if phase.phase is Phase.VALIDATE and vitals.tasks:  # the results of all are told together
        waiting = [view.tasks[task].host for task in vitals.tasks if task in view.tasks]
    share = 1 - len(waiting) / max(1, phase.hosts)
    text = f"{phase.hosts - len(waiting)} of {count(phase.hosts, 'host')}"
    if phase.phase is Phase.STAGE and view.sending is not None:
        share, text = view.sending.sent / max(1, view.sending.total), _sending(view.sending)
    who = f"waiting for {fold.names(waiting)}" if 0 < len(waiting) < phase.hosts else ""
    if phase.phase is Phase.VALIDATE:
        who = _validating(view, vitals, waiting) or who
    return _progress(phase.phase, share, text, who, width)


def _setup(view: View, width: int) -> list[Row]:
    """How far the hosts are that make their environment."""
    steps = {host.name: host.setup for host in view.hosts.values() if host.setup is not None}
    if not steps:
        return []
    shares = [step.done / step.total if step.total else 0.0 for step in steps.values()]
    groups = grouped((plain(step.step), name) for name, step in steps.items())
    who = "; ".join(f"{fold.names(hosts)} {step}" for step, hosts in groups.items())
    return _progress(Phase.SETUP, sum(shares) / len(shares), "", who, width)


def _data(view: View, phase: PhaseView, width: int) -> list[Row]:
    """The data's way: who is furthest behind, and how far that is."""
    behind = min(view.data.values(), key=lambda step: step.done / max(1, step.total), default=None)
    if behind is None:
        return _progress(Phase.DATA, 0.0, count(phase.hosts, "host"), "", width)
    text = f"{size(behind.done)} of {size(behind.total)}" if behind.total else ""
    who = plain(f"{behind.host or 'this machine'} {behind.step}")
    return _progress(Phase.DATA, behind.done / max(1, behind.total), text, who, width)


def _progress(phase: Phase, share: float, text: str, who: str, width: int) -> list[Row]:
    """A bar with its figures, and below it those who are on their way."""
    full = round(max(0.0, min(1.0, share)) * _BAR)
    bar = f"[{'=' * full}{' ' * (_BAR - full)}]"
    lines = wrapped([f"  {who}"], width) if who else ()
    return [((f"{phase:<9} ", ""), (bar, "green"), (f"  {text}", "")), *(((line, ""),) for line in lines)]


def _sending(event: CodeSending) -> str:
    """`120 MB of 900 MB  25 MB/s  31 s left`"""
    said = [f"{size(event.sent)} of {size(event.total)}", f"{size(event.rate)}/s"]
    if event.rate > 0 and event.total > event.sent:
        said.append(f"{_since((event.total - event.sent) / event.rate)} left")
    return "  ".join(said)


def _validating(view: View, vitals: Vitals, waiting: Iterable[str]) -> str:
    """`gpu-02: step 12; gpu-[03-04]: starts`"""
    said = {view.tasks[task].host: vital.said for task, vital in vitals.tasks.items() if task in view.tasks}
    steps = grouped((said.get(host, "") or "starts", host) for host in waiting)
    return "; ".join(f"{fold.names(hosts)}: {step}" for step, hosts in steps.items())
