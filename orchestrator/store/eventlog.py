"""events.jsonl, as its keeper writes it."""

from __future__ import annotations

import contextlib
import os
import time

from orchestrator.eventjson import encode
from orchestrator.events import Stamped
from orchestrator.plainfile import make_way, open_plain, stands_at
from orchestrator.store.folder import RunFolder


class EventLog:
    """Appends events to events.jsonl, so that a reader never takes half of one for a whole.

    On a full disk they wait in memory; logs leave some room for them (`mirror.ROOM`).
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._waiting = b""
        self._fd = self._open()
        # A keeper killed in mid-write may have left half a line: end it, so that ours stands alone.
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._waiting = b"\n"

    def _open(self) -> int:
        make_way(self._folder.events)
        return open_plain(self._folder.events, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def __call__(self, stamped: Stamped) -> None:
        if not stands_at(self._folder.events, self._fd):  # viewers read another file than we write
            with contextlib.suppress(OSError):
                fd = self._open()
                os.dup2(fd, self._fd, inheritable=False)
                os.close(fd)
        self._waiting += encode(stamped) + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Write what waits; False when there is no room for all of it."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError:
            return False
        return True

    def finish(self) -> None:
        """No event will come any more: wait for room for the last ones."""
        deadline = time.monotonic() + 600.0
        while not self.flush() and time.monotonic() < deadline:
            time.sleep(1.0)
        os.close(self._fd)
