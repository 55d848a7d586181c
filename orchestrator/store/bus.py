"""Events: stamped once, whatever thread they come from, handed to each subscriber in order, and kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from orchestrator.clock import SYSTEM, Clock
from orchestrator.events import Event, RunEnded, RunLeft, Stamped, TaskProgressed, encode
from orchestrator.plainfile import open_plain
from orchestrator.store.folder import RunFolder
from orchestrator.store.standing import ViewFile

Subscriber = Callable[[Stamped], None]


class Bus:
    """Stamps events and passes them on, one at a time, whatever thread they come from."""

    def __init__(self, *subscribers: Subscriber, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._subscribers = subscribers
        self._lock = threading.Lock()
        self._over = False

    def emit(self, event: Event) -> None:
        """Pass it on; behind a run's end, what a thread that was given up still says is dropped."""
        with self._lock:
            if not self._over:
                self._over = isinstance(event, RunEnded | RunLeft)
                stamped = Stamped(self._clock.wall(), event)
                for subscriber in self._subscribers:
                    subscriber(stamped)


class EventLog:
    """Appends events to events.jsonl, so that a reader never takes half of one for a whole.

    On a full disk they wait in memory; logs leave some room for them (`mirror.ROOM`).
    """

    def __init__(self, folder: RunFolder, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._waiting = b""
        self._fd = open_plain(folder.events, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self._view = ViewFile(folder)
        # A keeper killed in mid-write may have left half a line: end it, so that ours stands alone.
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._waiting = b"\n"

    def __call__(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, TaskProgressed):  # it has a file of its own
            self._view.take(stamped, -1)
            return
        self._waiting += encode(stamped) + b"\n"
        written = os.fstat(self._fd).st_size if self.flush() else -1
        self._view.take(stamped, written)

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
        deadline = self._clock.now() + 600.0
        while not self.flush() and self._clock.now() < deadline:
            self._clock.sleep(1.0)
        os.close(self._fd)
