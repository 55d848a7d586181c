"""Lines that several tasks print within a moment, shown once; TensorFlow's own lines, counted. Pure.

The contract of `Folding`:
1. The lines of one task are shown in the order in which they came.
2. A line is held for a moment at most, and not at all once every task has said it; what is only counted waits
   longer, and so does an error that means nothing if the task then ends well.
3. Everything is shown or counted: `flush` at the end leaves nothing.

Only what is known to be harmless counts as TensorFlow's own: information (`I`), and what `_HARMLESS` names.
Any other warning or error is the task's. A line costs the same however many tasks there are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from orchestrator import events as ev
from orchestrator.diagnosis.ends import failed
from orchestrator.events import Event, LogLine
from orchestrator.model import Fold
from orchestrator.text import count

MOMENT = 0.4  # seconds that a line waits for others
PATIENCE = 5.0  # seconds that an error waits for its task's end
_QUIET = 10.0  # seconds after the last line that is only counted
_AT_MOST = 30.0  # seconds that a count grows
_MOST_OPEN = 1000  # lines that are held

_NOTES = "TensorFlow's notes"
_END = "TensorFlow's end: the tasks did not leave together, which is harmless"


class LineOrigin(Enum):
    TASK = auto()  # it is shown
    NOISE = auto()  # it is counted
    # An error of the service by which tasks find each other: others have gone. It means nothing when the task
    # itself ends well, and much when it does not.
    FAREWELL = auto()


# Durations and rates as Keras prints them: `0s`, `398ms/epoch`, `ETA: 1:02`, `41.2 steps/s`.
_VARYING = re.compile(
    r"(?<=ETA: )[0-9:]{1,16}s?(?![\w:])"
    r"|(?:(?<![\w.\[;:/-])|(?<=\x1b\[[01]m))[0-9]+(?:\.[0-9]+)? ?(?:ns|us|\u00b5s|ms|s)"
    r"(?=/(?:step|epoch|sample|batch)\b|[^\w/]|$)"
    r"|(?<![\w.])[0-9]+(?:\.[0-9]+)?(?= ?(?:steps?|examples?|samples?|images?|it|batch(?:es)?)/s)"
)
# `I0000 00:00:1795318895.276187   30788 port.cc:153] ...`, and as it was before TensorFlow 2.17:
# `2024-01-02 09:35:23.860511: I tensorflow/core/util/port.cc:113] ...`
_HEAD = re.compile(
    r"(?:([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: ([IWEF]) )(\S+):\d+\] (.*)"
)
_HARMLESS = re.compile(
    r"oneDNN custom operations are on"
    r"|This TensorFlow binary is optimized"
    r"|Unable to register cu\w+ factory"
    r"|[Cc]omputation placer already registered"
    r"|TF-TRT Warning: Could not find TensorRT"
    r"|Could not find cuda drivers"
    r"|Could not load dynamic library 'lib(?:nvinfer|cudart)"
    r"|NUMA node"
    r"|[Ff]ailed call to cuInit: (?:CUDA_ERROR_NO_DEVICE|UNKNOWN ERROR \(303\))"
    r"|Input of \w+::Dataset will not be optimized"
    r"|AUTO sharding policy will apply DATA sharding"
    r"|Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence"
)
_ALARM = re.compile(r"(?i)error|fail|abort|crash|unhealthy|exception|out of memory|oom|nan\b|killed")
_BEFORE_LOGGING = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
_GONE = re.compile(r"The following tasks are unhealthy|Failed to send RPC to coordination service")
# Lines that go on with the one before.
_MORE = re.compile(
    r"To enable the following instructions:"
    r"|/job:\w+/replica:\d+/task:\d+$"
    r"|Your kernel may (?:not )?have been built with"
    r"|The tasks have crashed\. Check the task logs"
    r"|Additional GRPC error information from remote target "
    r'|:(?:UNKNOWN:|\{"created":)'
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
    """Equal lines that are shown once; or, of noise, lines that are counted below one label."""

    key: str
    place: int  # in the order in which they are shown
    arrived: float  # by the viewer's clock
    sent: float
    lines: dict[str, LogLine] = field(default_factory=dict)  # the first of each task
    count: int = 0
    grew: float = 0.0

    def add(self, line: LogLine, now: float) -> None:
        self.lines.setdefault(line.task, line)
        self.count += 1
        self.grew = now

    def shown(self) -> Shown:
        first, tasks = next(iter(self.lines.values())), tuple(self.lines)
        return first if len(tasks) == 1 else Folded(tasks, first.host, first.text, first.sent)

    def counted(self) -> Folded:
        first = next(iter(self.lines.values()))
        text = f"{self.key}: {count(self.count, 'line')}; tail --raw shows them"
        return Folded(tuple(self.lines), first.host, text, first.sent, noise=True)


class Folding:
    """Lines in, lines out; `now` is the viewer's monotonic clock."""

    def __init__(self, fold: Fold, wanted: Callable[[str], bool] = lambda _task: True) -> None:
        self._none = fold is Fold.NONE
        self._wanted = wanted
        self._running: set[str] = set()
        self._before: dict[str, LineOrigin] = {}  # of each task's last line
        self._held: dict[
            str, tuple[float, list[LogLine]]
        ] = {}  # errors that wait for their task's end, since
        self._counts: dict[str, _Group] = {}  # what is only counted, by its label
        self._open: deque[_Group] = deque()
        self._by_key: dict[str, list[_Group]] = {}
        self._last: dict[str, int] = {}  # task -> the place of its last line
        self._place = 0

    def note(self, event: Event, now: float, *, aloud: bool) -> list[Shown]:
        """The lines that are shown before an event; all of them when something is said of it."""
        match event:
            case ev.TaskStarted(task):
                if self._wanted(task):
                    self._running.add(task)
                self._before.pop(task, None)
            case ev.TaskExited(task):
                self._running.discard(task)
                if event.stopped or failed(event):
                    self._release(self._held, now)
                for line in self._held.pop(task, (0.0, []))[1]:
                    self._count(line, _END, now)
            case ev.HostLost() | ev.AttemptFailed() | ev.RunEnded():
                self._release(self._held, now)
            case ev.StopRequested() if event.by is not ev.StopBy.COMPLETION:
                self._release(self._held, now)
        return self._all() if aloud else []

    def add(self, line: LogLine, sent: float, now: float) -> list[Shown]:
        """Take a line; the lines that are shown now."""
        if self._none:
            return [line]
        task = line.task
        shown = self._due(now, sent)
        before = self._before.get(task)
        if before is None:
            before = LineOrigin.TASK
            self._running.add(task)
        goes_on = before is not LineOrigin.TASK and _MORE.match(line.text)
        origin = self._before[task] = before if goes_on else origin_of(line.text)
        match origin:
            case LineOrigin.NOISE:
                self._count(line, _NOTES, now)
            case LineOrigin.FAREWELL:
                self._held.setdefault(task, (now, []))[1].append(line)
            case LineOrigin.TASK:
                self._release([task], now)
                self._join(line, sent, now)
        return shown + self._due(now, sent)

    def tick(self, now: float) -> list[Shown]:
        """The lines that have waited long enough."""
        self._release([task for task, (since, _) in self._held.items() if now - since >= PATIENCE], now)
        over = [
            one for one in self._counts.values() if now - one.grew >= _QUIET or now - one.arrived >= _AT_MOST
        ]
        return [self._counts.pop(one.key).counted() for one in over] + self._due(now, 0.0)

    def flush(self, now: float) -> list[Shown]:
        """Everything that is held."""
        self._release(self._held, now)
        return self._all()

    def _all(self) -> list[Shown]:
        counts, self._counts = self._counts, {}
        return [*(one.counted() for one in counts.values()), *(self._pop() for _ in range(len(self._open)))]

    def _count(self, line: LogLine, label: str, now: float) -> None:
        if label not in self._counts:
            self._counts[label] = _Group(label, 0, now, line.sent)
        self._counts[label].add(line, now)

    def _release(self, tasks: Iterable[str], now: float) -> None:
        """Have the errors of these tasks, which wait, count as lines."""
        for task in list(tasks):
            for line in self._held.pop(task, (0.0, []))[1]:
                self._join(line, line.sent, now)

    def _join(self, line: LogLine, sent: float, now: float) -> None:
        """Add a line to the first group of its shape after the task's last line, or to a new one."""
        key = shape(line.text)
        groups = self._by_key.setdefault(key, [])
        at = bisect_right(groups, self._last.get(line.task, -1), key=lambda group: group.place)
        if at == len(groups):
            groups.append(_Group(key, self._place, now, sent))
            self._open.append(groups[at])
            self._place += 1
        groups[at].add(line, now)
        self._last[line.task] = groups[at].place

    def _due(self, now: float, sent: float) -> list[Shown]:
        shown: list[Shown] = []
        while self._open and self._is_due(self._open[0], now, sent):
            shown.append(self._pop())
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
        groups = self._by_key[group.key]
        groups.pop(0)
        if not groups:
            del self._by_key[group.key]
        return group.shown()


def shape(text: str) -> str:
    """Return the text without durations and rates: lines of one shape are shown once."""
    return _VARYING.sub("\0", text) if "/" in text or ":" in text else text


def origin_of(text: str) -> LineOrigin:
    """Tell whose line a text is that does not go on with the one before."""
    if text == _BEFORE_LOGGING:
        return LineOrigin.NOISE
    if text.startswith("INFO:tensorflow:"):
        return LineOrigin.TASK if _ALARM.search(text) else LineOrigin.NOISE
    if text[:1] not in "IWE2" or not (head := _HEAD.match(text)):
        return LineOrigin.TASK
    level, file, message = head[1] or head[2], head[3], head[4]
    if _HARMLESS.search(message):
        return LineOrigin.NOISE
    if level == "I" and not _ALARM.search(message):
        return LineOrigin.NOISE
    if level == "F":
        return LineOrigin.TASK
    gone = "coordination_service" in file or _GONE.search(message)
    return LineOrigin.FAREWELL if gone else LineOrigin.TASK
