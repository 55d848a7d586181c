"""How fast the code leaves, summed up over all hosts, told once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from orchestrator.events import CodeSending

_EVERY = 1.0  # seconds


class Meter:
    """Counts what many threads send; the first word comes after a second, so small trees say nothing."""

    def __init__(self, emit: Callable[[CodeSending], None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._began = self._told = time.monotonic()
        self._sent = self._total = 0

    def expect(self, size: int) -> None:
        with self._lock:
            self._total += size

    def add(self, size: int) -> None:
        with self._lock:
            self._sent += size
            now = time.monotonic()
            if now - self._told < _EVERY:
                return
            self._told = now
            event = CodeSending(self._sent, max(self._sent, self._total), self._sent / (now - self._began))
        self._emit(event)
