"""Whether another task has come, is there, or has gone, by its port: for tasks that end when it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker_entry.failure import ExpectedError
from worker_entry.watch import OPEN

GONE_AFTER = 3  # looks in a row that find nobody


class Presence:
    def __init__(
        self, name: str, look: Callable[[], str], patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._look = look
        self._come_by = clock() + patience
        self._clock = clock
        self.met = False
        self._missed = 0

    def gone(self) -> bool:
        """Look once, every half second or so. Raises when the task has not come in time."""
        found = self._look()
        if found == OPEN:
            self.met, self._missed = True, 0
        elif self.met:
            self._missed += 1
        elif self._clock() > self._come_by:
            raise ExpectedError(f"{self._name} did not come", why=found, hint="--start-timeout waits longer")
        return self._missed >= GONE_AFTER
