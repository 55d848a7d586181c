"""Following tasks: their log, report, and state as stream frames, from any offset.

All tails are polled and take turns, one frame each, while the outbox has room. A final state is
sent only after the last byte of log and report.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import Any

from ..base.fault import NodeError
from ..base.paths import TaskFolder
from ..serve.agent import Agent, Request
from ..serve.frames import Frame, Json
from . import state
from .output import RECORD

CHUNK = 64 << 10
TIMES = 2048  # in one frame; a log of single bytes has one for each

_QUICK, _SLOW = 0.02, 0.2  # seconds between two checks: after new data, and after some without any
_LOCKS_EVERY = 1.0  # seconds between two checks for tasks whose guard and supervisor were killed
_SETTLE_SECONDS = 30.0


class Follower:
    """All the tails of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._tails: list[Tail] = []
        self._due: deque[Tail] = deque()
        self._settling: set[Tail] = set()
        self._pause = _QUICK
        agent.rooms["follower"] = self
        self._look()
        self._look_at_locks()

    def add(self, tail: Tail) -> None:
        self._tails.append(tail)
        self._pause = _QUICK

    def hurry(self) -> None:
        self._pause = _QUICK

    def drop(self, stream: int) -> None:
        for tail in [tail for tail in self._tails if tail.stream == stream]:
            self._forget(tail)

    def _look(self) -> None:
        self._due.extend(tail for tail in self._tails if tail not in self._due)
        self._pause = min(self._pause * 1.5, _SLOW)
        self._pump()
        self._agent.loop.after(self._pause, self._look)

    def _pump(self) -> None:
        while self._due and self._agent.outbox.room:
            tail = self._due.popleft()
            frame = tail.next_frame()
            if frame is not None:
                self._agent.send(*frame)
                self._due.append(tail)
                self._pause = _QUICK
            if tail.over:
                self._forget(tail)
        if self._due:
            self._agent.outbox.when_room(self._pump)

    def _forget(self, tail: Tail) -> None:
        self._tails.remove(tail)
        if tail in self._due:
            self._due.remove(tail)
        tail.close()

    def _look_at_locks(self) -> None:
        """In a child, because it is slow: settle tasks whose lock is free although they have not ended."""
        self._agent.loop.after(_LOCKS_EVERY, self._look_at_locks)
        for tail in self._tails:
            # out of descriptors or processes, or a failing disk: checked again later
            with suppress(OSError, NodeError):
                if state.is_gone(tail.folder):
                    tail.bury(state.REMOVED)
                elif tail not in self._settling and not (
                    state.is_locked(tail.folder) or state.has_ended(tail.folder)
                ):
                    self._settle(tail)

    def _settle(self, tail: Tail) -> None:
        def work() -> Any:
            return {"ok": True, "state": state.settle(tail.folder)}, b""

        def done(reply: Any) -> None:
            pause = 0.0 if reply[0]["ok"] else _SETTLE_SECONDS  # something cannot be killed: retry later
            if reply[0]["ok"]:
                tail.take(reply[0]["state"])
            self._agent.loop.after(pause, lambda: self._settling.discard(tail))

        self._agent.jobs.run("settle", work, done, seconds=_SETTLE_SECONDS)
        self._settling.add(tail)


def follow(agent: Agent, request: Request) -> Json:
    """Start a stream with the request's id; return the tasks that do not exist here."""
    missing = []
    for position in request["tasks"]:
        folder = agent.paths.task(request["run"], request["attempt"], position["task"])
        log, report = int(position.get("log") or 0), int(position.get("report") or 0)
        try:
            _follower(agent).add(Tail(int(request["id"]), folder, log, report))
        except FileNotFoundError:
            missing.append(position["task"])
    return {"missing": missing}


def type_in(agent: Agent, request: Request) -> Json:
    """Send input to the terminal of a task, and check at once for its output."""
    folder = agent.paths.task(request["run"], request["attempt"], request["task"])
    state.tell(folder, {"want": "type", "typed": request["typed"], "terminal": request["terminal"]})
    _follower(agent).hurry()
    return {}


def unfollow(agent: Agent, request: Request) -> Json:
    """End the stream of an earlier `follow`."""
    _follower(agent).drop(int(request["target"]))
    return {}


def _follower(agent: Agent) -> Follower:
    return agent.rooms.get("follower") or Follower(agent)


class Tail:
    """Produces a task's frames, one at a time; open files can be read even after their removal."""

    def __init__(self, stream: int, folder: TaskFolder, log: int, report: int) -> None:
        self.stream = stream
        self.folder = folder
        self.over = False
        self._began = log
        self._log = _File(folder.log, log)
        self._report = _File(folder.report, report)
        self._times = Times(folder.idx, log)
        self._seen: Json | None = None
        self._state: Json | None = None  # not reported yet

    def close(self) -> None:
        for file in (self._log, self._report, self._times.file):
            file.close()

    def next_frame(self) -> Frame | None:
        """Return the next frame; None if there is nothing new. `over` after the final state.

        The state is read before the files: after a final state they cannot grow any more.
        """
        with suppress(FileNotFoundError):  # the run was removed; the open files can still be read
            if self._seen is None or not state.is_final(self._seen):
                self.take(state.read(self.folder))
        if self._state is not None and not state.is_final(self._state):
            return self._next_state()
        return self._next_log() or self._next_report() or self._next_state()

    def bury(self, message: str) -> None:
        """Treat the task as lost: its folder is gone, and its supervisor ends it."""
        record = self._seen or state.new(self.folder, "", 0)
        if not state.is_final(record):
            self.take(state.ended(record, state.LOST, message))

    def take(self, record: Json) -> None:
        """Store a state to report, if it has changed."""
        if record != self._seen:
            self._seen = self._state = record

    def _next_state(self) -> Frame | None:
        record, self._state = self._state, None
        if record is None:
            return None
        self.over = state.is_final(record)
        return self._frame("state", state=record), b""

    def _next_log(self) -> Frame | None:
        offset = self._log.offset
        data = self._log.read(CHUNK)
        if not data and offset == self._began:
            return None  # the time of the first byte is sent with that byte
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

    def _frame(self, kind: str, **fields: Any) -> Json:
        of = self.folder
        return {"stream": self.stream, "attempt": of.attempt, "task": of.task, "kind": kind, **fields}


class _File:
    """A growing file, from an offset on."""

    def __init__(self, path: str, offset: int) -> None:
        self.offset = offset
        self._fd = os.open(path, os.O_RDONLY)

    def read(self, limit: int) -> bytes:
        return os.pread(self._fd, limit, self.offset)

    def close(self) -> None:
        os.close(self._fd)


class Times:
    """The index of a log, read along with it: each record is sent once, with or after its bytes.

    Only the record in which a stream begins may have been sent before.
    """

    def __init__(self, path: str, log: int) -> None:
        self.file = _File(path, 0)
        self._log = log  # where the stream begins
        self._ahead: deque[tuple[int, int]] = deque()  # read from the file, not yet sent

    def until(self, end: int) -> tuple[list[tuple[int, int]], int]:
        """Return the unsent records before `end`, and how far they reach: less if there are too many."""
        marks: list[tuple[int, int]] = []
        while self._fill() and self._ahead[0][0] < end:
            record = self._ahead.popleft()
            if self._fill() and self._ahead[0][0] <= self._log:
                continue  # the stream begins in a later record
            if len(marks) == TIMES:
                self._ahead.appendleft(record)
                return marks, record[0]
            marks.append(record)
        return marks, end

    def _fill(self) -> bool:
        if not self._ahead:
            data = self.file.read(RECORD.size * TIMES)
            data = data[: len(data) - len(data) % RECORD.size]
            self._ahead.extend(RECORD.iter_unpack(data))
            self.file.offset += len(data)
        return bool(self._ahead)
