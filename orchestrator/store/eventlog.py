"""events.jsonl, as its keeper writes it."""

from __future__ import annotations

import os
import time

from orchestrator.events import Stamped, encode
from orchestrator.store.folder import RunFolder


class EventLog:
    """Appends events to events.jsonl, so that a reader never takes half of one for a whole.

    On a full disk they wait in memory; the reserve makes room for the first of them, and so for the
    run's end.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._reserve = folder.reserve
        self._waiting = b""
        self._fd = os.open(folder.events, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A keeper killed in mid-write may have left half a line: end it, so that ours stands alone.
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._waiting = b"\n"

    def __call__(self, stamped: Stamped) -> None:
        self._waiting += encode(stamped) + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Write what waits; False when there is no room for all of it."""
        try:
            self._write()
        except OSError:
            try:
                self._reserve.unlink()
                self._write()
            except OSError:
                return False
        return True

    def _write(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[os.write(self._fd, self._waiting) :]

    def finish(self, patience: float = 600.0) -> None:
        """No event will come any more: wait for room for the last ones, then give the reserve back."""
        deadline = time.monotonic() + patience
        while not self.flush() and time.monotonic() < deadline:
            time.sleep(1.0)
        os.close(self._fd)
        self._reserve.unlink(missing_ok=True)
