"""The pipe that the task writes to, copied into its log."""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from typing import Any, Dict

from ..base.descriptors import close_all, write_all
from ..base.fault import reason
from .environ import Launch

CHUNK = 256 << 10

Gap = Dict[str, Any]  # {"offset", "bytes", "ns", "why"}: bytes missing at that offset

RECORD = struct.Struct("<QQ")  # of idx, here and in the controller's copy
RECORD_EVERY_NS = 50_000_000
RETRY_EVERY_NS = 200_000_000
ROOM_TO_RESUME = 64 << 10  # with less, the disk would be full again at once, with a gap per line
MAX_GAPS = 64  # as many as a state can hold


class Output:
    """Reads without blocking, and appends to the log. `gaps` lists missing bytes; `changed`: it has grown."""

    def __init__(self, launch: Launch, pipe: int, gaps: list[Gap]) -> None:
        os.set_blocking(pipe, False)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._pipe = pipe
        self._log = os.open(launch.folder.log, flags, 0o600)
        self._index = os.open(launch.folder.idx, flags, 0o600)
        self._cap = launch.log_cap
        # The clock may be set while the task runs: the times of its lines never go back.
        self._epoch = time.time_ns() - time.monotonic_ns()
        self._indexed_ns = self._tried_ns = 0
        self._missing: Gap | None = None  # the current gap
        self._size = os.fstat(self._log).st_size
        self.gaps = gaps
        self.changed = False
        self.taken = 0  # bytes

    def take(self) -> int | None:
        """Store available output, up to a chunk; return its bytes, 0 at the end, None if there is none."""
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # from a terminal that nobody holds open any more
            return 0
        self.put(data)
        return len(data)

    def put(self, data: bytes) -> None:
        """Store output that was read elsewhere."""
        if data:
            self.taken += len(data)
            self._append(data, time.monotonic_ns() + self._epoch)

    def drain(self) -> None:
        """Store everything available, to the end."""
        while self.take():
            pass

    def close(self) -> None:
        close_all(self._log, self._index)

    def _append(self, data: bytes, now_ns: int) -> None:
        """Store the bytes if there is room, otherwise count them as missing; never raises for a full disk."""
        if self._missing is not None and not self._may_resume(now_ns):
            self._lose(len(data), now_ns, "")
            return
        allowed = data if self._cap is None else data[: max(0, self._cap - self._size)]
        start, why = self._size, ""
        if allowed:
            self._stamp(start, now_ns)  # first, so that a reader of the bytes finds their time
            try:
                write_all(self._log, allowed)
                self._size += len(allowed)
            except OSError as error:  # ENOSPC, EDQUOT, EFBIG, EIO
                why = reason(error)
                self._size = os.fstat(self._log).st_size
        if self._size > start:
            self._missing = None
        lost = len(data) - (self._size - start)
        if lost:
            self._tried_ns = now_ns
            self._lose(lost, now_ns, why or f"the log's cap of {self._cap} bytes is reached")

    def _may_resume(self, now_ns: int) -> bool:
        if (self._cap is not None and self._size >= self._cap) or len(self.gaps) >= MAX_GAPS:
            return False
        if now_ns - self._tried_ns < RETRY_EVERY_NS:
            return False
        self._tried_ns = now_ns
        try:
            room = os.fstatvfs(self._log)
        except OSError:
            return False
        return room.f_bavail * room.f_frsize >= ROOM_TO_RESUME

    def _lose(self, count: int, now_ns: int, why: str) -> None:
        if self._missing is None:
            self._missing = {"offset": self._size, "bytes": 0, "ns": now_ns, "why": why}
            self.gaps.append(self._missing)
        self._missing["bytes"] += count
        self.changed = True

    def _stamp(self, offset: int, now_ns: int) -> None:
        """Record when the bytes from an offset on arrived, unless that was just done."""
        if now_ns - self._indexed_ns < RECORD_EVERY_NS:
            return
        self._indexed_ns = now_ns
        with suppress(OSError):  # only a time is missing, not a byte
            if os.write(self._index, RECORD.pack(offset, now_ns)) != RECORD.size:
                size = os.fstat(self._index).st_size
                os.ftruncate(self._index, size - size % RECORD.size)
