"""Where every thread drops its facts: stamped once, handed to each subscriber in one order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from orchestrator.events import Event, Stamped

Subscriber = Callable[[Stamped], None]


class Bus:
    """Stamps events and passes them on, one at a time, whatever thread they come from."""

    def __init__(self, *subscribers: Subscriber, clock: Callable[[], float] = time.time) -> None:
        self._subscribers = subscribers
        self._clock = clock
        self._lock = threading.Lock()
        self._over = False

    def emit(self, event: Event) -> None:
        with self._lock:
            if not self._over:
                self._pass_on(event)

    def emit_last(self, event: Event) -> None:
        """Nothing comes after this one: what a thread that was given up still says is dropped."""
        with self._lock:
            self._over = True
            self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        stamped = Stamped(self._clock(), event)
        for subscriber in self._subscribers:
            subscriber(stamped)
