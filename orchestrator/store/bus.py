"""Events: stamped once, whichever thread emits them, passed to each subscriber in order, and stored."""

import contextlib
import os
import threading
from collections.abc import Callable

from orchestrator.clock import SYSTEM, Clock
from orchestrator.errors import OrchestrateError
from orchestrator.events import AttemptFailed, Event, RunEnded, RunLeft, Stamped, TaskProgressed, encode
from orchestrator.plainfile import open_plain
from orchestrator.run.view import View, apply
from orchestrator.store.folder import RunFolder
from orchestrator.store.standing import save, standing

Subscriber = Callable[[Stamped], None]
_EVERY = 200  # events after which the run's view is written again


class Bus:
    """Stamps events and passes them on one at a time, whichever thread emits them."""

    def __init__(self, *subscribers: Subscriber, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._subscribers = subscribers
        self._lock = threading.Lock()
        self._over = False

    def emit(self, event: Event) -> None:
        """Pass an event on; after a run's end, events from abandoned threads are dropped."""
        with self._lock:
            if not self._over:
                self._over = isinstance(event, RunEnded | RunLeft)
                stamped = Stamped(self._clock.wall(), event)
                for subscriber in self._subscribers:
                    subscriber(stamped)


class EventLog:
    """Appends events to events.jsonl in a way that readers never take half an event for a whole one.

    If the disk is full they wait in memory; logs leave some room for them (`mirror.ROOM`).
    """

    def __init__(self, folder: RunFolder, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._waiting = b""
        self._fd = open_plain(folder.events, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self._folder, self._view, self._unsaved = folder, View(), 0
        with contextlib.suppress(OrchestrateError):  # unreadable: they stay for others to read
            self._view, _ = standing(folder)
        # A keeper killed during a write may have left half a line: end it, so that ours is separate.
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._waiting = b"\n"

    def __call__(self, stamped: Stamped) -> None:
        self._view = apply(self._view, stamped.event, stamped.at)
        if isinstance(stamped.event, TaskProgressed):  # it has a file of its own
            return
        self._waiting += encode(stamped) + b"\n"
        self._unsaved += 1
        last = isinstance(stamped.event, RunEnded | RunLeft | AttemptFailed)
        if self.flush() and (last or self._unsaved >= _EVERY):
            self._unsaved = 0
            save(self._folder, self._view, os.fstat(self._fd).st_size)

    def flush(self) -> bool:
        """Write what waits; return False if there is not enough room."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError:
            return False
        return True

    def finish(self) -> None:
        """Wait for room for the last events; none will follow."""
        deadline = self._clock.now() + 600.0
        while not self.flush() and self._clock.now() < deadline:
            self._clock.sleep(1.0)
        os.close(self._fd)
