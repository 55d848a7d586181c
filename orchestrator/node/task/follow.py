"""Following tasks: their log, their report and their state as stream frames, from any offset.

A watched folder that changed marks its tail as due; due tails take turns, one frame each, for as long
as the outbox has room. A final state goes out only behind the last byte of log and report.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections import deque
from typing import Any, Callable

from ..base import ending
from ..base.fault import NodeError
from ..base.paths import TaskFolder
from ..serve.agent import Agent, Request
from ..serve.frames import Frame
from ..serve.loop import READ, Loop
from . import control, state
from .output import RECORD

_SETTLE_SECONDS = 30.0
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of what others may give back


class Follower:
    """All the tails of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._watcher = Watcher(agent.loop)
        self._due: list[Tail] = []
        self._tails: dict[Tail, tuple[int, Callable[[], None]]] = {}  # with its watch
        self._settling: set[Tail] = set()
        agent.outbox.on_room = self._pump
        self._look_around()

    def add(self, tail: Tail) -> None:
        def wake() -> None:
            self._wake(tail)

        self._tails[tail] = (self._watcher.add(tail.folder.path, wake), wake)
        self._agent.loop.after(0.0, wake)  # behind the reply

    def drop(self, stream: int) -> None:
        for tail in [tail for tail in self._tails if tail.stream == stream]:
            self._forget(tail)

    def _wake(self, tail: Tail) -> None:
        if tail in self._tails and tail not in self._due:
            self._due.append(tail)
        self._pump()

    def _pump(self) -> None:
        while self._due and self._agent.outbox.room:
            tail = self._due.pop(0)
            try:
                frame = tail.next_frame()
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                continue  # it is due again with the next look
            if frame is not None:
                self._agent.send(*frame)
                self._due.append(tail)
            if tail.over:
                self._forget(tail)

    def _forget(self, tail: Tail) -> None:
        self._watcher.remove(*self._tails.pop(tail))
        if tail in self._due:
            self._due.remove(tail)
        tail.close()

    def _look_around(self) -> None:
        """Look for what no watch tells: a lock let go by two killed processes, or an event that was lost."""
        self._agent.loop.after(LOOK_EVERY, self._look_around)
        for tail in list(self._tails):
            self._wake(tail)
            try:
                if tail in self._tails and tail not in self._settling and not control.is_locked(tail.folder):
                    self._settle(tail)
            except (OSError, NodeError):
                pass  # no descriptor or process is left for it, or its disk fails: the next look tells

    def _settle(self, tail: Tail) -> None:
        """Make a state true in a child: killing may take a moment. The new state file wakes the tail."""
        folder = tail.folder

        def work() -> Any:
            gone = not os.path.exists(folder.lock)
            if gone:
                ending.sweep(f"{folder.run}/{folder.attempt}/{folder.task}")
            else:
                control.settle(folder)
            return {"ok": True, "gone": gone}, b""

        def done(reply: Any) -> None:
            if reply[0].get("gone") and tail in self._tails:
                tail.bury(state.REMOVED)
                self._wake(tail)
            pause = 0.0 if reply[0]["ok"] else _SETTLE_SECONDS  # something cannot be killed: later again
            self._agent.loop.after(pause, lambda: self._settling.discard(tail))

        self._agent.jobs.run("settle", work, done, seconds=_SETTLE_SECONDS)
        self._settling.add(tail)


def follow(agent: Agent, request: Request) -> dict[str, Any]:
    """Start a stream with the request's id; return the tasks that are not here."""
    folders = [
        (agent.paths.task(request["run"], request["attempt"], wanted["task"]), wanted)
        for wanted in request["tasks"]
    ]
    missing = []
    for folder, wanted in folders:
        try:
            state.read(folder)
        except FileNotFoundError:
            missing.append(wanted["task"])
            continue
        tail = Tail(int(request["id"]), folder, int(wanted.get("log") or 0), int(wanted.get("report") or 0))
        _follower(agent).add(tail)
    return {"missing": missing}


def unfollow(agent: Agent, request: Request) -> dict[str, Any]:
    """End the stream of an earlier `follow`."""
    _follower(agent).drop(int(request["target"]))
    return {}


def _follower(agent: Agent) -> Follower:
    if "follower" not in agent.rooms:
        agent.rooms["follower"] = Follower(agent)
    follower: Follower = agent.rooms["follower"]
    return follower


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
        """Return what is to be told next; None when there is nothing now. `over` behind the final state.

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


LOOK_EVERY = 1.0

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x8, 0x80, 0x100
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")


class Watcher:
    """Calls back for each watched folder when something in it changed."""

    def __init__(self, loop: Loop) -> None:
        self._calls: dict[int, list[Callable[[], None]]] = {}
        self._fd = -1
        try:
            import ctypes

            self._libc: Any = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(_NONBLOCK_CLOEXEC)
        except (ImportError, OSError, AttributeError):
            pass
        if self._fd >= 0:
            loop.watch(self._fd, READ, self._hear)

    def add(self, folder: str, call: Callable[[], None]) -> int:
        """A handle for `remove`; -1 where the kernel has no watch left. A folder may be watched twice."""
        if self._fd < 0:
            return -1
        mask = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE
        handle: int = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if handle >= 0:
            self._calls.setdefault(handle, []).append(call)
        return handle

    def remove(self, handle: int, call: Callable[[], None]) -> None:
        calls = self._calls.get(handle, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._calls[handle]
                self._libc.inotify_rm_watch(self._fd, handle)

    def _hear(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        at = 0
        told = set()
        while at < len(data):
            handle, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            told.add(handle)
        for handle in told if -1 not in told else list(self._calls):  # -1: the kernel dropped some
            for call in list(self._calls.get(handle, ())):
                call()
