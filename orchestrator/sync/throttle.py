"""Bytes per second that several threads may send together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_CREDIT = 0.5  # seconds that were not used and may be made up for


class Throttle:
    """Holds threads up so that together they send no more than `limit` bytes per second; None: as they come.

    What a single thread needs to read and to hand over between two pieces does not make it slower.
    """

    def __init__(
        self,
        limit: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = clock()

    def wait(self, size: int) -> None:
        """Return when so many bytes may leave."""
        if self._limit is None:
            return
        with self._lock:
            now = self._clock()
            self._next = max(self._next, now - _CREDIT) + size / self._limit
            left = self._next - now
        self._sleep(max(0.0, left))
