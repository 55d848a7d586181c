"""The pipe that the task writes to, read into its log."""

from __future__ import annotations

import os
import struct
import time
from typing import Any, Dict

from ..base.fault import reason
from .environ import Launch

CHUNK = 256 << 10

_LITTLE = 32 << 10
_REST = 0.01  # after a read that brought little: lines come in groups, not one by one


class Output:
    """Reads without ever waiting; `rests_until` says when the next look is worth it."""

    def __init__(self, launch: Launch, pipe: int, gaps: list[Gap]) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self.log = LogFile(launch.folder.log, launch.folder.idx, launch.log_cap, gaps)
        # The clock may be set while the task runs: the times of its lines go on, never back.
        self._epoch = time.time_ns() - time.monotonic_ns()
        self.ended = False
        self.taken = 0  # bytes
        self.rests_until: float | None = None

    def take(self) -> None:
        """Keep what is there now, up to a chunk."""
        size = self._read()
        self.ended = size == 0
        if size is not None and 0 < size < _LITTLE:
            self.rests_until = time.monotonic() + _REST

    def drain(self) -> None:
        """All that is there, to the end; then close the log."""
        while self._read():
            pass
        self.log.close()

    def _read(self) -> int | None:
        """How many bytes came; 0 at the end, None when there is nothing now."""
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return None
        if data:
            self.taken += len(data)
            self.log.append(data, time.monotonic_ns() + self._epoch)
        return len(data)


Gap = Dict[str, Any]  # {"offset", "bytes", "ns", "why"}: what is missing at that offset


RECORD = struct.Struct("<QQ")  # of idx, here and in the copy of the controller
RECORD_EVERY_NS = 50_000_000
RETRY_EVERY_NS = 200_000_000
ROOM_TO_RESUME = 64 << 10  # less would be full again at once, a gap per line
MAX_GAPS = 64  # as many as a state has room for that is written on a full disk


class LogFile:
    """Appends to log; `gaps` tells what is missing, `changed` that it should be told."""

    def __init__(self, log: str, index: str, cap: int | None, gaps: list[Gap]) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._log = os.open(log, flags, 0o600)
        self._index = os.open(index, flags, 0o600)
        self._cap = cap
        self._indexed_ns = 0
        self._tried_ns = 0
        self._missing: Gap | None = None  # the gap that is being made
        self.size = os.fstat(self._log).st_size
        self.gaps = gaps
        self.changed = False

    def append(self, data: bytes, now_ns: int) -> None:
        """Keep the bytes if there is room, else count them as missing; never raises for a full disk."""
        if self._missing is not None and not self._may_resume(now_ns):
            self._lose(len(data), now_ns, "")
            return
        allowed = data if self._cap is None else data[: max(0, self._cap - self.size)]
        start = self.size
        stamped = bool(allowed) and self._stamp(start, now_ns)  # first: who reads the bytes finds their time
        why = self._write(allowed) if allowed else ""
        if self.size > start:
            self._missing = None
        elif stamped:
            self._unstamp()
        lost = len(data) - (self.size - start)
        if lost:
            self._tried_ns = now_ns
            self._lose(lost, now_ns, why or f"the log's cap of {self._cap} bytes is reached")

    def close(self) -> None:
        os.close(self._log)
        os.close(self._index)

    def _may_resume(self, now_ns: int) -> bool:
        if (self._cap is not None and self.size >= self._cap) or len(self.gaps) >= MAX_GAPS:
            return False
        if abs(now_ns - self._tried_ns) < RETRY_EVERY_NS:
            return False
        self._tried_ns = now_ns
        try:
            room = os.fstatvfs(self._log)
        except OSError:
            return False
        return room.f_bavail * room.f_frsize >= ROOM_TO_RESUME

    def _write(self, data: bytes) -> str:
        """Write what can be written; return why the rest could not be."""
        view = memoryview(data)
        try:
            while view:
                count = os.write(self._log, view)
                self.size += count
                view = view[count:]
        except OSError as error:  # ENOSPC, EDQUOT, EFBIG, EIO
            return reason(error)
        return ""

    def _lose(self, count: int, now_ns: int, why: str) -> None:
        if self._missing is None:
            self._missing = {"offset": self.size, "bytes": 0, "ns": now_ns, "why": why}
            self.gaps.append(self._missing)
        self._missing["bytes"] += count
        self.changed = True

    def _stamp(self, offset: int, now_ns: int) -> bool:
        """Note when the bytes from an offset on came, unless it was just done; whether a record was added."""
        if abs(now_ns - self._indexed_ns) < RECORD_EVERY_NS:
            return False
        self._indexed_ns = now_ns
        try:
            if os.write(self._index, RECORD.pack(offset, now_ns)) == RECORD.size:
                return True
            size = os.fstat(self._index).st_size
            os.ftruncate(self._index, size - size % RECORD.size)
        except OSError:
            pass  # a time is missing, no byte
        return False

    def _unstamp(self) -> None:
        """Take the last record back: none of its bytes found room, and what comes there comes later."""
        self._indexed_ns = 0
        try:
            os.ftruncate(self._index, os.fstat(self._index).st_size - RECORD.size)
        except OSError:
            pass
