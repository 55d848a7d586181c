"""The pipe that the task writes to, read into its log."""

from __future__ import annotations

import os
import time

from .launch import Launch
from .logfile import Gap, LogFile

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
        """What is there now, up to a chunk."""
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
