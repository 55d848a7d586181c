"""Lines that several tasks print at about the same time, shown once. Pure.

The contract of `Folding`: 1. The lines of one task are shown in the order in which they arrived. 2. A line
is held only briefly, and not at all once every task has printed it. 3. Everything is shown except
TensorFlow's informational output; `flush` at the end leaves nothing.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from orchestrator.events import Event, LogLine, TaskExited, TaskStarted
from orchestrator.value import Value

MOMENT = 0.4  # seconds that a line waits for others
_MOST_OPEN = 200  # lines that are held

# `I0000 00:00:1795318895.276187   30788 port.cc:153] ...`, and before TensorFlow 2.17
# `2024-01-02 09:35:23.860511: I tensorflow/core/util/port.cc:113] ...`. A program that logs with absl has
# lines of this form that name a Python file; of those only TensorFlow's are matched.
_INFORMATION = re.compile(
    r"I\d{4} \d\d:\d\d:[\d.]+ +\d+ (?:\S+\.(?:cc|h|cu|cpp)|(?:cross_device|collective|mirrored|multi_"
    r"|parameter_server|cluster_coord|distribut|saver|checkpoint|builder_impl|dataset_)\w*\.py):\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: I \S+:\d+\] "
    r"|WARNING: All log messages before absl::InitializeLog|To enable the following instructions: [A-Z]"
)
_INFO = "INFO:tensorflow:"  # also TensorFlow's messages about an error that it recovers from
_ALARM = re.compile(r"(?i)error|fail|abort|crash|unhealthy|exception|out of memory|oom|nan\b|killed")
# Lines below an informational one that are part of it.
_CONTINUED = re.compile(r"/job:\w+/replica:\d+/task:\d+\s*$|\s*\[\[\{\{(?:function_)?node |:?\{\"created\":")
# A timestamp at the beginning of a line, after a bracket or a level at most.
_STAMP = re.compile(
    r"^(\W{0,3}(?:[A-Z]{4,8}\b\W{1,3})?)"
    r"(?:(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d(?:/\d{2,4})?|[A-Z][a-z]{2} [ \d]\d)[ T])?"
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?![\d:])"
)
# TensorFlow's timestamps; durations and rates of Keras: `0s`, `398ms/epoch`, `ETA: 1:02`, `41 it/s`;
# the folder of the run, which differs between hosts on one machine.
_VARYING = re.compile(
    r"^[IWEF]\d{4} \d\d:\d\d:[\d.]+ +\d+ "
    r"|/[^\"'\s]{1,200}/runs/\d{8}-\d{6}-\w{4}/"
    r"|(?<=ETA: )[0-9:]{1,16}s?(?![\w:])"
    r"|(?:(?<![\w.\[;:/-])|(?<=\x1b\[[01]m))[0-9]+(?:\.[0-9]+)? ?(?:ns|us|\u00b5s|ms|s)"
    r"(?=/(?:step|epoch|sample|batch)\b|[^\w/]|$)"
    r"|(?<![\w.])[0-9]+(?:\.[0-9]+)?(?= ?(?:steps?|examples?|samples?|images?|it|batch(?:es)?)/s)"
)


class Folded(Value):
    """One line for several; `tasks` are those that printed it."""

    tasks: tuple[str, ...]
    host: str  # of the first
    text: str
    sent: float


Shown: TypeAlias = LogLine | Folded


class _Group(Struct, eq=False):
    key: str
    place: int  # in display order
    arrived: float  # by the viewer's clock
    sent: float
    lines: dict[str, LogLine] = {}  # the first of each task

    def shown(self) -> Shown:
        first, tasks = next(iter(self.lines.values())), tuple(self.lines)
        return first if len(tasks) == 1 else Folded(tasks, first.host, first.text, first.sent)


class Folding:
    """Lines in, lines out; `now` is the viewer's monotonic clock."""

    def __init__(self, includes: Callable[[str], bool] = lambda _task: True) -> None:
        self._includes = includes
        self._running: set[str] = set()
        self._open: deque[_Group] = deque()
        self._last: dict[str, int] = {}  # task -> the position of its last line
        self._hides: set[str] = set()  # tasks whose last line was informational
        self._place = 0

    def note(self, event: Event, *, aloud: bool) -> list[Shown]:
        """Return the lines to show before an event; all of them if the event itself is shown."""
        match event:
            case TaskStarted(task) if self._includes(task):
                self._running.add(task)
            case TaskExited(task):
                self._running.discard(task)
        return self.flush() if aloud else []

    def add(self, line: LogLine, sent: float, now: float) -> list[Shown]:
        """Take a line; return the lines to show now."""
        shown = self._due(now, sent)
        if line.task not in self._last:
            self._last[line.task] = -1
            self._running.add(line.task)
        hides = is_information(line.text) or (line.task in self._hides and _CONTINUED.match(line.text))
        (self._hides.add if hides else self._hides.discard)(line.task)
        if hides:
            return shown
        key, last = shape(line.text), self._last[line.task]
        group = next((group for group in self._open if group.key == key and group.place > last), None)
        if group is None:
            group = _Group(key, self._place, now, sent)
            self._open.append(group)
            self._place += 1
        group.lines[line.task] = line
        self._last[line.task] = group.place
        return shown + self._due(now, sent)

    def tick(self, now: float) -> list[Shown]:
        """Return the lines that have waited long enough."""
        return self._due(now, 0.0)

    def flush(self) -> list[Shown]:
        """Return everything that is held."""
        return [self._open.popleft().shown() for _ in range(len(self._open))]

    def _due(self, now: float, sent: float) -> list[Shown]:
        shown: list[Shown] = []
        while self._open and self._is_due(self._open[0], now, sent):
            shown.append(self._open.popleft().shown())
        return shown

    def _is_due(self, group: _Group, now: float, sent: float) -> bool:
        return (
            len(group.lines) >= len(self._running)
            or now - group.arrived >= MOMENT
            or sent - group.sent >= MOMENT
            or len(self._open) > _MOST_OPEN
        )


def is_information(text: str) -> bool:
    """Return True for informational output of TensorFlow, XLA and absl, whatever its text."""
    if text.startswith(_INFO):
        return not _ALARM.search(text)
    return text[:1] in "IT2W" and bool(_INFORMATION.match(text))


def shape(text: str) -> str:
    """Return the text without durations, rates and timestamps; equal results are shown once."""
    if "/" not in text and ":" not in text:
        return text
    return _VARYING.sub("\0", _STAMP.sub("\\1\0", text))
