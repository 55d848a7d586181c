"""Hanging tasks: from when each was last heard of and how far it is. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.events import HangKind
from orchestrator.model import Completion, Role, TaskId

_UNUSUAL = 3.0  # times the longest pause that a task has made between two of its steps


class Life(Struct, frozen=True):
    """One task's signs of life; times are those of a clock that only goes forward."""

    heard: float  # its last output or report, or its start
    step: int | None = None
    stepped: float = 0.0  # when it reported that step
    pause: float | None = None  # the longest between two of its steps, once there were two
    passed: float | None = None  # since when another one is ahead of it


class Hang(Struct, frozen=True):
    kind: HangKind
    tasks: tuple[TaskId, ...]
    seconds: float  # for how long by now


Lives = dict[TaskId, Life]


def heard(lives: Lives, task: TaskId, now: float) -> None:
    """Note that the task printed or reported something."""
    lives[task] = replace(lives[task], heard=now)


def stepped(lives: Lives, task: TaskId, step: int, now: float) -> None:
    """Note a step: the task is ahead of those that have reported a lower one."""
    old = lives[task]
    pause = None if old.step is None else max(old.pause or 0.0, now - old.stepped)
    ahead = any(one.step is not None and one.step > step for one in lives.values() if one is not old)
    lives[task] = Life(now, step, now, pause, now if ahead else None)
    for name, one in lives.items():
        if name != task and one.step is not None and one.step < step and one.passed is None:
            lives[name] = replace(one, passed=now)


def watched(tasks: Collection[TaskId]) -> set[TaskId]:
    """The tasks that train: evaluators and parameter servers wait for a living."""
    trainers = {task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)}
    return trainers or set(tasks)


def look(
    lives: Mapping[TaskId, Life], patience: float, now: float, *, since: float, completion: Completion
) -> Hang | None:
    """Return what the living, watched tasks show at `now`; nothing before `since` is held against them.

    Where tasks step together one cannot be far ahead of another: who stays behind, silently and for
    longer than ever before, hangs. Before its second step a task is only ever silent with all others.
    """
    if not lives:
        return None
    if completion is Completion.ALL:
        behind = {task: _behind(life, patience, now, since) for task, life in lives.items()}
        late = {task: seconds for task, seconds in behind.items() if seconds}
        if late and len(late) < len(lives):
            return Hang(HangKind.LAGGING, tuple(sorted(late)), max(late.values()))
    quiet = now - max(since, *(life.heard for life in lives.values()))
    return Hang(HangKind.SILENT, tuple(sorted(lives)), quiet) if quiet >= patience else None


def _behind(life: Life, patience: float, now: float, since: float) -> float:
    """For how long it has stayed behind, once that is too long; else 0."""
    if life.passed is None or life.pause is None:
        return 0.0
    seconds = now - max(since, life.heard, life.passed)
    return seconds if seconds >= max(patience, _UNUSUAL * life.pause) else 0.0
