"""The tasks of a run as a table that fits a screen: a row each, or a row per state. Pure.

No word and no number is cut: what does not fit is a column that is left out, the least worth first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.diagnosis.ends import end_after, failed
from orchestrator.render import fold
from orchestrator.render.wrap import fitting, shortened
from orchestrator.run.view import TaskState, TaskView, View
from orchestrator.run.vitals import Vital, Vitals
from orchestrator.text import count, duration, plain, size

Cell: TypeAlias = tuple[str, str]  # text and the name of a style
Row: TypeAlias = tuple[Cell, ...]

QUIET = 30.0  # seconds without a word after which a task stands out

_GAP = "  "
_LEFT = ("task", "host", "state")
_COLUMNS = (*_LEFT, "attempt", "epoch", "step", "loss", "steps/s", "last word", "CPU", "memory", "GPU")
_LEAST_FIRST = ("memory", "host", "CPU", "GPU", "steps/s", "attempt", "last word", "epoch", "loss")
_LONGEST_LABEL = 24  # of tasks that share a row
_STYLES = {
    TaskState.PLANNED: "dim",
    TaskState.STARTED: "",
    TaskState.READY: "",
    TaskState.TRAINING: "green",
    TaskState.UNKNOWN: "yellow",
    TaskState.ENDED: "dim",
}


@dataclass(frozen=True)
class BoardLine:
    cells: Mapping[str, Cell]
    note: Cell = ("", "")  # stands behind the state, in place of numbers

    def cell(self, name: str) -> Cell:
        return self.cells.get(name, ("", ""))


def table(view: View, vitals: Vitals, now: float, height: int, width: int) -> list[Row]:
    """The tasks in at most `height` rows of `width` cells, with their titles."""
    if len(view.tasks) < height:
        lines = [_line(view, task, vitals.tasks.get(task.task), now) for task in view.tasks.values()]
    else:
        lines = _by_state(view, vitals, now)
    return rows(lines, width)[:height]


def state_of(view: View, task: TaskView, vital: Vital | None) -> TaskState:
    """Where it stands, by what its own lines say, too."""
    state = view.state(task)
    if state in (TaskState.STARTED, TaskState.READY) and vital is not None and vital.fit is not None:
        return TaskState.TRAINING
    return state


def _line(view: View, task: TaskView, vital: Vital | None, now: float) -> BoardLine:
    state = state_of(view, task, vital)
    named = {"task": (task.task, "task"), "host": (task.host, ""), "state": (str(state), _STYLES[state])}
    if task.exited:
        return BoardLine(named, (end_after(task.exited), "red" if failed(task.exited) else ""))
    if state is TaskState.UNKNOWN:
        host = view.hosts[task.host]
        return BoardLine(named, (plain(f"no word for {duration(now - host.since)} ({host.why})"), ""))
    note = (plain(task.ready), "") if state is TaskState.READY and task.ready else ("", "")
    return BoardLine({**named, **attempt_of(task.attempt), **numbers([(task, vital)], now)}, note)


def attempt_of(attempt: str) -> dict[str, Cell]:
    """The cell of an attempt that is not the first."""
    return {} if attempt in ("", "1") else {"attempt": (attempt, "")}


def _by_state(view: View, vitals: Vitals, now: float) -> list[BoardLine]:
    """A line per state."""
    groups: dict[TaskState, list[tuple[TaskView, Vital | None]]] = {}
    for task in view.tasks.values():
        vital = vitals.tasks.get(task.task)
        groups.setdefault(state_of(view, task, vital), []).append((task, vital))
    lines = []
    for state, members in groups.items():
        label = fold.names(task.task for task, _ in members)
        tasks = count(len(members), "task")
        cells: dict[str, Cell] = {
            "task": (label if len(label) <= _LONGEST_LABEL else tasks, ""),
            "host": (tasks if len(label) <= _LONGEST_LABEL else "", "dim"),
            "state": (str(state), _STYLES[state]),
        }
        bad = [task.task for task, _ in members if task.exited and failed(task.exited)]
        note = (f"{fold.names(bad)} failed", "red") if bad else ("", "")
        active = state not in (TaskState.ENDED, TaskState.UNKNOWN)
        lines.append(BoardLine({**cells, **(numbers(members, now) if active else {})}, note))
    return lines


def numbers(members: Sequence[tuple[TaskView, Vital | None]], now: float) -> dict[str, Cell]:
    """The columns of numbers, each from the least to the most where they differ."""
    read = [(task, vital.fit) for task, vital in members if vital and vital.fit]
    fits = [fit for task, fit in read if task.step is None]  # a task's own numbers win
    vitals = [vital for _, vital in members if vital is not None]
    tasks = [task for task, _ in members]
    losses = [task.loss for task in tasks if task.loss is not None]
    rates = [task.steps_per_second for task in tasks if task.steps_per_second is not None]
    heard = [max(0.0, now - vital.heard) for vital in vitals]
    lost = [fit.diverged for fit in fits if fit.diverged]
    busy = _between([one.gpu_busy for one in vitals], lambda percent: f"{percent:.0f} %")
    cells = {
        "epoch": _parts([(fit.epoch, fit.epochs) for _, fit in read]),
        "step": _parts([(task.step, None) for task in tasks] + [(fit.step, fit.steps) for fit in fits]),
        "loss": _between([*losses, *(fit.loss for fit in fits if fit.loss is not None)], _loss_word),
        "steps/s": _between(
            [*rates, *(fit.steps_per_second for fit in fits)],
            lambda rate: f"{rate:.1f}" if rate >= 0.095 else f"{rate:.3f}",
        ),
        "last word": _between(heard, _ago),
        "CPU": _between([one.cpu for one in vitals], lambda busy: f"{100 * busy:.0f} %"),
        "memory": _between([one.memory for one in vitals], size),
        "GPU": " ".join(filter(None, (busy, _between([one.gpu_memory for one in vitals], size)))),
    }
    shown = {name: (text, "") for name, text in cells.items() if text}
    if lost:
        shown["loss"] = (lost[0], "red")
    if heard and min(heard) > QUIET:
        shown["last word"] = (shown["last word"][0], "yellow")
    return shown


def _loss_word(loss: float) -> str:
    """Four digits after the point, or the number's own way when that would show nothing."""
    return f"{loss:.4f}" if loss == 0 or 0.001 <= abs(loss) < 1e6 else f"{loss:.3e}"


def _ago(seconds: float) -> str:
    """Word a time in whole seconds, so that the eye is not drawn to it."""
    return f"{int(seconds)} s" if seconds < 9.95 else duration(seconds)


def _parts(values: Iterable[tuple[int | None, int | None]]) -> str:
    """`12/20`, `11..12/20`, `1,240`."""
    known = [(number, of) for number, of in values if number is not None]
    if not known:
        return ""
    least, most = min(number for number, _ in known), max(number for number, _ in known)
    whole = {of for _, of in known}
    of = whole.pop() if len(whole) == 1 else None
    shown = f"{least:,}" if least == most else f"{least:,}..{most:,}"
    return shown if of is None else f"{shown}/{of:,}"


def _between(values: Iterable[float | int | None], word: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    least, most = word(min(known)), word(max(known))
    if least == most:
        return least
    number, _, unit = least.partition(" ")
    return f"{number}..{most}" if unit and most.endswith(f" {unit}") else f"{least}..{most}"


def rows(lines: Sequence[BoardLine], width: int) -> list[Row]:
    """The lines below their titles, with the columns that fit."""
    used = [name for name in _COLUMNS if any(line.cell(name)[0] for line in lines)]
    widths = {name: max(len(name), *(len(line.cell(name)[0]) for line in lines)) for name in used}
    used = fitting({name: widths[name] for name in used}, _LEAST_FIRST, width)
    titles: Row = tuple((_aligned(name, name, widths), "dim") for name in used)
    has_numbers = any(name not in _LEFT for name in used)
    return [*([titles] if has_numbers else []), *(_row(line, used, widths, width) for line in lines)]


def _row(line: BoardLine, used: Sequence[str], widths: Mapping[str, int], width: int) -> Row:
    shown = [name for name in used if name in _LEFT or not line.note[0]]
    cells = [(_aligned(line.cell(name)[0], name, widths), line.cell(name)[1]) for name in shown]
    if line.note[0]:
        left = width - sum(len(text) for text, _ in cells)
        cells.append((shortened(line.note[0], left), line.note[1]))
    return tuple(cells)


def _aligned(text: str, name: str, widths: Mapping[str, int]) -> str:
    return (f"{text:<{widths[name]}}" if name in _LEFT else f"{text:>{widths[name]}}") + _GAP
