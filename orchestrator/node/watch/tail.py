"""One task as it is followed: what of its log, report and state has been told, and what comes next."""

from __future__ import annotations

import os
import time
from collections import deque

from ..base.annotations import Any
from ..base.paths import TaskFolder
from ..serve.frames import Frame
from ..task import state
from ..task.logfile import RECORD

CHUNK = 64 << 10
TIMES = 2048  # in one frame; a log of single bytes has one for each


class Tail:
    """Makes frames, one at a time; holds the files open so that nothing can take them away."""

    def __init__(self, stream: int, folder: TaskFolder, log: int, report: int) -> None:
        self.stream = stream
        self.folder = folder
        self.over = False
        self._began = log
        self._log = _File(folder.log, log)
        self._report = _File(folder.report, report)
        self._times = Times(folder.idx, log)
        self._seen: dict[str, Any] | None = None
        self._state: dict[str, Any] | None = None  # not yet told

    def close(self) -> None:
        for file in (self._log, self._report):
            file.close()
        self._times.close()

    def next_frame(self) -> Frame | None:
        """What is to be told next; None when there is nothing now. `over` behind the final state.

        The state is read before the files: with a final state they can grow no more.
        """
        self._look_at_state()
        if self._state is not None and not state.is_final(self._state):
            return self._tell_state()
        return self._next_log() or self._next_report() or self._tell_state()

    def _look_at_state(self) -> None:
        try:
            found = state.read(self.folder)  # a stat may be the same for two that were written in a row
            if found != self._seen:
                self._seen = self._state = found
        except FileNotFoundError:
            pass  # the run was dropped; the files that are open can still be read

    def bury(self, message: str) -> None:
        """Take the task for lost: its folder is gone, and nothing of it is alive."""
        known = self._seen or state.new(self.folder, "", 0)
        self._seen = self._state = state.ended(known, state.LOST, time.time_ns(), message)

    def _tell_state(self) -> Frame | None:
        told, self._state = self._state, None
        if told is None:
            return None
        if state.is_final(told):
            self.over = True
        return self._frame("state", state=told), b""

    def _next_log(self) -> Frame | None:
        offset = self._log.offset
        data = self._log.read(CHUNK)
        if not data and offset == self._began:
            return None  # the record that covers the first byte comes with it
        times, end = self._times.until(offset + len(data))
        if not data and not times:
            return None
        data = data[: end - offset]
        self._log.offset = end
        return self._frame("log", offset=offset, times=times), data

    def _next_report(self) -> Frame | None:
        offset = self._report.offset
        data = self._report.read(CHUNK)
        self._report.offset += len(data)
        return (self._frame("report", offset=offset), data) if data else None

    def _frame(self, kind: str, **fields: Any) -> dict[str, Any]:
        of = self.folder
        return {"stream": self.stream, "attempt": of.attempt, "task": of.task, "kind": kind, **fields}


class _File:
    """A file that grows, from an offset on; it need not be there yet."""

    def __init__(self, path: str, offset: int) -> None:
        self.offset = offset
        self._path = path
        self._fd = -1

    def read(self, limit: int, offset: int | None = None) -> bytes:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        return os.pread(self._fd, limit, self.offset if offset is None else offset)

    def size(self) -> int:
        self.read(0)
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Times:
    """The index of a log, read along with it: each record is told once, with or after its bytes.

    Only the record in which a stream begins may have been told before.
    """

    def __init__(self, path: str, log: int) -> None:
        self._file = _File(path, 0)
        self._log = log
        self._placed = False
        self._ahead: deque[tuple[int, int]] = deque()  # read from the file, not yet told

    def until(self, end: int) -> tuple[list[tuple[int, int]], int]:
        """The untold records before `end`, and how far they reach: nearer when there are too many."""
        if not self._placed:
            self._place()
        told: list[tuple[int, int]] = []
        while self._fill() and self._ahead[0][0] < end:
            if len(told) == TIMES:
                return told, self._ahead[0][0]
            told.append(self._ahead.popleft())
        return told, end

    def close(self) -> None:
        self._file.close()

    def _fill(self) -> bool:
        if not self._ahead:
            data = self._file.read(RECORD.size * TIMES)
            data = data[: len(data) - len(data) % RECORD.size]
            self._ahead.extend(RECORD.iter_unpack(data))
            self._file.offset += len(data)
        return bool(self._ahead)

    def _place(self) -> None:
        """Go to the last record that is not behind the stream's first byte."""
        low, high = 0, self._file.size() // RECORD.size
        if high == 0:
            return  # nothing written yet: what comes is new
        while high - low > 1:
            middle = (low + high) // 2
            data = self._file.read(RECORD.size, middle * RECORD.size)
            low, high = (middle, high) if RECORD.unpack(data)[0] <= self._log else (low, middle)
        self._file.offset = low * RECORD.size
        self._placed = True
