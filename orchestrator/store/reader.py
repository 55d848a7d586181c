"""A run's folder as one stream of events: events.jsonl and the logs, merged for viewers.

The contract of `RunReader.poll`:
1. Every event of events.jsonl comes once, in order; between them TaskProgressed of points.jsonl.
2. Every line of a followed log comes once, in file order, after the task's TaskStarted and before its
   TaskExited; lines of several tasks are ordered by time.
3. A display that cannot keep up loses lines only with `drop_behind`, and then receives a LogGap.
"""

import heapq
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct, field

from orchestrator import events as ev
from orchestrator.errors import UsageError
from orchestrator.node.task.output import RECORD
from orchestrator.plainfile import open_plain, tail_of
from orchestrator.run.lines import Splitter
from orchestrator.store.folder import RunFolder
from orchestrator.store.points import PointReader

WINDOW = 65_536  # bytes at the end that are examined
_CHUNK = 1 << 18  # bytes of a log read at once
_LONGEST = 16 << 20  # bytes of an event
_AT_ONCE = 20_000  # lines between two checks for events


class _Log(Struct):
    """How far one task's log was read."""

    task: str
    host: str
    path: Path
    times: Path
    splitter: Splitter
    offset: int = 0
    times_offset: int = 0
    ended: bool = False
    fd: int = -1
    dry: int = 0  # the poll in which its end was reached
    waiting: deque[ev.Stamped] = field(default_factory=deque)  # read, but not yielded yet


class RunReader(Struct):
    """Reads a run's folder from its beginning; `poll` again for what was added since."""

    folder: RunFolder
    shows: Callable[[str], bool] = lambda _task: True  # which tasks' lines
    last: int | None = None  # of each log, start with its last lines
    drop_behind: int | None = None  # bytes that a display may be behind before lines are dropped
    blocks: bool = False  # consecutive ordinary lines of one task come together, separated by newlines
    start: int = 0  # byte of the events; earlier ones were already read
    ended: bool = False
    given_up: bool = False  # the last keeper could not keep it
    progress: bool = True  # include what tasks report of their training
    damage: str = ""  # the first part of events.jsonl that could not be read
    _polls: int = 0
    _points: PointReader | None = None
    _reports: deque[ev.Stamped] = field(default_factory=deque)  # points, not yielded yet
    _logs: dict[tuple[str, str], _Log] = {}
    _live: list[_Log] = []  # those that may have more in this poll: each of many events asks for their lines
    _clocks: dict[str, float] = {}  # seconds that a host's clock is ahead of ours

    def poll(self) -> Iterator[ev.Stamped]:
        """Yield what is new until nothing is left; a busy log may have more right away."""
        self._polls += 1
        self._live = list(self._logs.values())
        self._report()
        for stamped in self._events():
            event = stamped.event
            yield from self._lines(stamped.at)
            if isinstance(event, ev.TaskExited | ev.RunEnded):  # its last ones were written before it
                self._report()
            yield from self._reported(math.inf if isinstance(event, ev.RunEnded) else stamped.at)
            match event:
                case ev.HostConnected(host, _, clock):
                    self._clocks[host] = clock
                case ev.TaskStarted(task, host, attempt):
                    self._begin(task, host, attempt)
                case ev.TaskExited(task, _, attempt):
                    yield from self._drain(self._logs.get((attempt, task)))
                case ev.RunAdopted():  # possibly of a run that was over except for a host that did not reply
                    self.ended = self.given_up = False
                    self._live = list(self._logs.values())
                    for log in self._live:
                        log.ended = False
                case ev.RunLeft():
                    self.given_up = True
                case ev.RunEnded():
                    for log in self._logs.values():
                        yield from self._drain(log)
                    self.ended = True
                case _:
                    pass
            yield stamped
        yield from islice(self._lines(None), _AT_ONCE)
        yield from self._reported(math.inf)

    def _report(self) -> None:
        """Read the points that were added since."""
        if self.progress:
            self._points = self._points or PointReader(self.folder.points)
            self._reports.extend(ev.Stamped(point.at, point.event) for point in self._points.poll())

    def _reported(self, until: float) -> Iterator[ev.Stamped]:
        while self._reports and self._reports[0].at <= until:
            yield self._reports.popleft()

    def _events(self) -> Iterator[ev.Stamped]:
        try:
            fd = open_plain(self.folder.events, os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(
                f"the events of run {self.folder.run} cannot be read",
                why=f"{self.folder.events}: {error.strerror}",
                hint=f"`orchestrate stop {self.folder.run}` ends it; or `mv` the file away: "
                "`orchestrate tail` then begins a new one",
            ) from error
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size < self.start:  # emptied, and begun again
                self.start = 0
            file.seek(self.start)
            while line := file.readline(_LONGEST):
                begins = self.start
                if not line.endswith(b"\n") and len(line) < _LONGEST:
                    return  # the rest of it is being written
                self.start += len(line)
                try:
                    yield ev.decode(line)
                except msgspec.ValidationError as error:
                    # Half a line from a killed keeper, ended by the next one, is not damage.
                    half = line.startswith(b'{"at":') and not line.endswith(b"}\n") and len(line) < _LONGEST
                    if not half and not self.damage:  # reported once
                        self.damage = f"{self.folder.events}: at byte {begins:,} is no event: {error}"
                        warning = f"{self.damage}; it is skipped, and so are all lines like it"
                        yield ev.Stamped(time.time(), ev.Noted(warning))

    def _begin(self, task: str, host: str, attempt: str) -> None:
        if (attempt, task) in self._logs or not self.shows(task):
            return
        path, times = self.folder.log(attempt, task), self.folder.times(attempt, task)
        offset = 0
        if self.last is not None:  # where its last lines begin, within the examined part
            data, begins = tail_of(path, _LONGEST)
            lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
            offset = begins + len(data) - (sum(map(len, lines[-self.last :])) if self.last else 0)
        splitter = self._splitter(task, host, offset)
        log = self._logs[attempt, task] = _Log(task, host, path, times, splitter, offset)
        self._live.append(log)

    def _splitter(self, task: str, host: str, offset: int) -> Splitter:
        return Splitter(task, host, offset=offset, clock=self._clocks.get(host, 0.0))

    def _lines(self, until: float | None) -> Iterator[ev.Stamped]:
        """Yield the lines of all logs by the time of their bytes, up to a moment (s since the epoch)."""
        self._live = [log for log in self._live if not log.ended and self._fill(log)]
        heap = [(log.waiting[0].at, order, log) for order, log in enumerate(self._live)]
        heapq.heapify(heap)
        while heap:
            at, order, log = heap[0]
            if until is not None and at > until:
                return
            yield log.waiting.popleft()
            if self._fill(log):
                heapq.heapreplace(heap, (log.waiting[0].at, order, log))
            else:
                heapq.heappop(heap)

    def _drain(self, log: _Log | None) -> Iterator[ev.Stamped]:
        """Yield the rest of a log whose task has ended."""
        if log is None or log.ended:
            return
        log.dry = 0  # it is complete now
        while self._fill(log):
            yield log.waiting.popleft()
        yield from _stamp(log.splitter.end())
        log.ended = True
        if log.fd >= 0:
            os.close(log.fd)
            log.fd = -1

    def _fill(self, log: _Log) -> bool:
        """Return True if a line of the log is waiting, after reading further if none was.

        It reads to the end once per poll.
        """
        while not log.waiting and not log.ended and log.dry != self._polls:
            if log.fd < 0:
                try:
                    log.fd = open_plain(log.path, os.O_RDONLY)
                except OSError:  # usually because there is none yet
                    log.dry = self._polls
                    return False
            self._skip(log)
            data = os.pread(log.fd, _CHUNK, log.offset)
            if not data:
                log.dry = self._polls
                return bool(log.waiting)
            log.offset += len(data)
            feed = log.splitter.feed_blocks if self.blocks else log.splitter.feed
            log.waiting.extend(_stamp(feed(data, _new_times(log))))
        return bool(log.waiting)

    def _skip(self, log: _Log) -> None:
        """Skip what a slow display will never catch up with, and report it."""
        if self.drop_behind is None:
            return
        size = os.fstat(log.fd).st_size
        if size - log.offset <= self.drop_behind:
            return
        target = size - self.drop_behind // 4
        dropped = 0
        while log.offset < target:
            data = os.pread(log.fd, min(1 << 20, target - log.offset), log.offset)
            dropped += data.count(b"\n")
            log.offset += len(data)
        log.offset += os.pread(log.fd, 1 << 16, log.offset).find(b"\n") + 1
        log.splitter = self._splitter(log.task, log.host, log.offset)
        log.times_offset = 0
        why = "the terminal is slower than the log; the file has all"
        gap = ev.LogGap(log.task, ev.GapPlace.DISPLAY, dropped + 1, why)
        log.waiting.append(ev.Stamped(time.time(), gap))


def _stamp(lines: list[ev.LogLine]) -> Iterator[ev.Stamped]:
    now = time.time()
    for line in lines:
        yield ev.Stamped(line.sent or now, line)


def _new_times(log: _Log) -> list[tuple[int, int]]:
    try:
        with os.fdopen(open_plain(log.times, os.O_RDONLY), "rb") as file:
            file.seek(log.times_offset)
            data = file.read()
    except OSError:  # without it the lines have no times
        return []
    whole = len(data) - len(data) % RECORD.size
    log.times_offset += whole
    return [(offset, when) for offset, when in RECORD.iter_unpack(data[:whole])]


def events_of(folder: RunFolder) -> list[ev.Stamped]:
    """Return all events of a run that are on disk; raise UsageError if they cannot be read."""
    return list(RunReader(folder, shows=lambda _task: False).poll())


def last_lines(path: Path, count: int, window: int = WINDOW) -> tuple[str, ...]:
    """Return the last display lines of a log that are not blank; empty if there is no log."""
    data, begins = tail_of(path, window)
    if begins:
        # A progress bar that redraws itself for an hour is one line: its end is better than nothing.
        lines = data.partition(b"\n")[2]
        data = lines if lines.strip() else data
    splitter = Splitter("", "")
    texts = [line.text for line in (*splitter.feed(data), *splitter.end())]
    return tuple(text for text in texts if text.strip())[-count:]


def last_bytes(path: Path) -> bytes:
    """Return the complete lines at the end of a file; empty if there is no file."""
    data, begins = tail_of(path, WINDOW)
    return data.partition(b"\n")[2] if begins else data
