"""Lines that several tasks print within a moment, shown once; TensorFlow's own lines, counted. Pure.

The contract of `Folding`:
1. The lines of one task are shown in the order in which they came.
2. A line is held for a moment at most, and not at all once every task has said it. What is only counted
   (`noise`) may wait longer, and so may an error that means nothing if the task then ends well.
3. Everything is shown or counted: `flush` at the end leaves nothing.

A line costs the same however many tasks there are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator import events as ev
from orchestrator.diagnosis.ends import failed
from orchestrator.events import Event, LogLine
from orchestrator.model import Fold
from orchestrator.render.noise import LineOrigin, Noise, begins, named
from orchestrator.text import count

MOMENT = 0.4  # seconds that a line waits for others
_QUIET = 10.0  # seconds after the last line that is only counted
_AT_MOST = 30.0  # seconds that a count grows
_MOST_OPEN = 1000  # lines that are held


_NOTES = "TensorFlow's notes"
_END = "TensorFlow's end: the tasks did not leave together, which is harmless"

# Durations and rates as Keras prints them: `0s`, `398ms/epoch`, `ETA: 1:02`, `41.2 steps/s`.
_VARYING = re.compile(
    r"(?<=ETA: )[0-9:]{1,16}s?(?![\w:])"
    r"|(?:(?<![\w.\[;:/-])|(?<=\x1b\[[01]m))[0-9]+(?:\.[0-9]+)? ?(?:ns|us|\u00b5s|ms|s)"
    r"(?=/(?:step|epoch|sample|batch)\b|[^\w/]|$)"
    r"|(?<![\w.])[0-9]+(?:\.[0-9]+)?(?= ?(?:steps?|examples?|samples?|images?|it|batch(?:es)?)/s)"
)


@dataclass(frozen=True)
class Folded:
    """One line for several; `tasks` are those that wrote it."""

    tasks: tuple[str, ...]
    host: str  # of the first
    text: str
    sent: float
    noise: bool = False


Shown: TypeAlias = LogLine | Folded


@dataclass(eq=False)
class _Group:
    key: str
    place: int  # in the order in which they are shown
    arrived: float  # by the viewer's clock
    sent: float
    noise: bool
    lines: dict[str, LogLine] = field(default_factory=dict)  # the first of each task
    count: int = 0
    grew: float = 0.0

    def add(self, line: LogLine, now: float) -> None:
        self.lines.setdefault(line.task, line)
        self.count += 1
        self.grew = now

    def shown(self) -> Shown:
        first, tasks = next(iter(self.lines.values())), tuple(self.lines)
        if self.noise:
            text = f"{self.key}: {count(self.count, 'line')}; tail --raw shows them"
            return Folded(tasks, first.host, text, first.sent, noise=True)
        return first if len(tasks) == 1 else Folded(tasks, first.host, first.text, first.sent)


class Folding:
    """Lines in, lines out; `now` is the viewer's monotonic clock."""

    def __init__(self, fold: Fold, wanted: Callable[[str], bool] = lambda _task: True) -> None:
        self._none = fold is Fold.NONE
        self._wanted = wanted
        self._running: set[str] = set()
        self._noise: dict[str, Noise] = {}
        self._farewells = Farewells()
        self._open: deque[_Group] = deque()
        self._by_key: dict[str, list[_Group]] = {}
        self._last: dict[str, int] = {}  # task -> the place of its last line
        self._place = 0

    def note(self, event: Event, now: float, *, aloud: bool) -> list[Shown]:
        """The lines that are shown before an event; all of them when something is said of it."""
        match event:
            case ev.TaskStarted(task):
                self._started(task)
            case ev.TaskExited():
                self._exited(event, now)
            case ev.HostLost() | ev.AttemptFailed() | ev.RunEnded():
                self._trouble(now)
            case ev.StopRequested() if event.by is not ev.StopBy.COMPLETION:
                self._trouble(now)
        return self._all() if aloud else []

    def add(self, line: LogLine, sent: float, now: float) -> list[Shown]:
        """Take a line; the lines that are shown now."""
        if self._none:
            return [line]
        task = line.task
        shown = self._due(now, sent)
        noise = self._noise.get(task)
        if noise is None:
            noise = self._noise[task] = Noise()
            self._running.add(task)
        match noise.origin(line.text):
            case LineOrigin.NOISE:
                self._count(line, _NOTES, now)
            case LineOrigin.FAREWELL:
                for harmless in self._farewells.add(line, now):
                    self._count(harmless, _END, now)
            case LineOrigin.TASK:
                self._join_all(self._farewells.of(task), now)
                self._join(line, sent, now)
        return shown + self._due(now, sent)

    def tick(self, now: float) -> list[Shown]:
        """The lines that have waited long enough."""
        self._join_all(self._farewells.overdue(now), now)
        return self._due(now, 0.0)

    def flush(self, now: float) -> list[Shown]:
        """Everything that is held."""
        self._trouble(now)
        return self._all()

    def _started(self, task: str) -> None:
        if self._wanted(task):
            self._running.add(task)
        self._noise.pop(task, None)
        self._farewells.started(task)

    def _exited(self, event: ev.TaskExited, now: float) -> None:
        """Sort the errors that wait for the task's end."""
        self._running.discard(event.task)
        if event.stopped or failed(event):
            self._trouble(now)
            return
        for line in self._farewells.ended_well(event.task):
            self._count(line, _END, now)

    def _trouble(self, now: float) -> None:
        """Something went wrong: every error counts as one."""
        self._join_all(self._farewells.all(), now)

    def _all(self) -> list[Shown]:
        return [self._pop() for _ in range(len(self._open))]

    def _count(self, line: LogLine, label: str, now: float) -> None:
        group = self._find(label, line.task, noise=True) or self._begin(label, line.sent, now, noise=True)
        group.add(line, now)
        self._last[line.task] = max(group.place, self._last.get(line.task, -1))

    def _join(self, line: LogLine, sent: float, now: float) -> None:
        key = shape(line.text)
        group = self._find(key, line.task, noise=False) or self._begin(key, sent, now, noise=False)
        group.add(line, now)
        self._last[line.task] = group.place

    def _join_all(self, lines: list[LogLine], now: float) -> None:
        for line in lines:
            self._join(line, line.sent, now)

    def _find(self, key: str, task: str, *, noise: bool) -> _Group | None:
        """The first group of that key after the task's last line; a count may go on growing."""
        groups = self._by_key.get(_keyed(key, noise=noise))
        if not groups:
            return None
        last = self._last.get(task, -1)
        at = bisect_right(groups, last - 1 if noise else last, key=lambda group: group.place)
        return groups[at] if at < len(groups) else None

    def _begin(self, key: str, sent: float, now: float, *, noise: bool) -> _Group:
        group = _Group(key, self._place, now, sent, noise)
        self._place += 1
        self._open.append(group)
        self._by_key.setdefault(_keyed(key, noise=noise), []).append(group)
        return group

    def _due(self, now: float, sent: float) -> list[Shown]:
        shown: list[Shown] = []
        while self._open:
            ahead = 0  # counts before the first line
            while ahead < len(self._open) and self._open[ahead].noise:
                ahead += 1
            if ahead < len(self._open) and self._is_due(self._open[ahead], now, sent):
                shown += [self._pop() for _ in range(ahead + 1)]
            elif self._open[0].noise and _is_over(self._open[0], now):
                shown.append(self._pop())
            else:
                break
        return shown

    def _is_due(self, group: _Group, now: float, sent: float) -> bool:
        return (
            len(group.lines) >= len(self._running)
            or now - group.arrived >= MOMENT
            or sent - group.sent >= MOMENT
            or len(self._open) > _MOST_OPEN
        )

    def _pop(self) -> Shown:
        group = self._open.popleft()
        key = _keyed(group.key, noise=group.noise)
        groups = self._by_key[key]
        groups.pop(0)
        if not groups:
            del self._by_key[key]
        return group.shown()


def shape(text: str) -> str:
    """Return the text without durations and rates: lines of one shape are shown once."""
    return _VARYING.sub("\0", text) if "/" in text or ":" in text else text


def _keyed(key: str, *, noise: bool) -> str:
    return f"\0{key}" if noise else key


def _is_over(group: _Group, now: float) -> bool:
    return now - group.grew >= _QUIET or now - group.arrived >= _AT_MOST


PATIENCE = 5.0  # seconds


class Farewells:
    def __init__(self) -> None:
        self._done: set[str] = set()  # tasks that have ended well
        self._excused: set[str] = set()  # tasks whose last such error was about those
        self._held: dict[str, tuple[float, list[LogLine]]] = {}  # since when, by task

    def started(self, task: str) -> None:
        self._done.discard(task)

    def add(self, line: LogLine, now: float) -> list[LogLine]:
        """Take a line; the lines that are known to be harmless now. It is one of them, or it is held."""
        gone = named(line.text)
        if begins(line.text):
            self._excused.discard(line.task)
        if gone <= self._done and (gone or line.task in self._excused):
            self._excused.add(line.task)
            return [*self._begun(line), line]
        self._held.setdefault(line.task, (now, []))[1].append(line)
        return []

    def _begun(self, line: LogLine) -> list[LogLine]:
        """The lines before one that goes on with them: it may be the first to name somebody."""
        _, held = self._held.get(line.task, (0.0, []))
        others = set[str]().union(*(named(one.text) for one in held))
        return self.of(line.task) if not begins(line.text) and others <= self._done else []

    def ended_well(self, task: str) -> list[LogLine]:
        """The lines that are harmless now that a task has ended: its own, and those about it."""
        self._done.add(task)
        harmless: list[LogLine] = []
        for other, (_, lines) in list(self._held.items()):
            gone = set[str]().union(*(named(line.text) for line in lines))
            if other == task or (gone and gone <= self._done):
                self._excused.add(other)
                harmless += self.of(other)
        return harmless

    def of(self, task: str) -> list[LogLine]:
        """The lines of a task, which are held no more."""
        return self._held.pop(task, (0.0, []))[1]

    def overdue(self, now: float) -> list[LogLine]:
        """Release the lines that were held long enough."""
        late = [task for task, (since, _) in self._held.items() if now - since >= PATIENCE]
        return [line for task in late for line in self.of(task)]

    def all(self) -> list[LogLine]:
        """Release all lines."""
        return [line for task in list(self._held) for line in self.of(task)]
