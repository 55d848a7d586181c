"""Steps per second, without the first step: that one is the trace of the function, not training."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._last = self._started
        self._steps = 0
        self._first: tuple[float, int] | None = None  # when the first step (or group of steps) ended

    def step(self, count: int = 1) -> None:
        self._last = self._clock()
        self._steps += count
        self._first = self._first or (self._last, count)

    @property
    def seconds(self) -> float:
        return self._last - self._started

    @property
    def steps_per_second(self) -> float:
        if self._first is None:
            return 0.0
        at, count = self._first
        if self._steps == count:
            return count / max(self.seconds, 1e-9)
        return (self._steps - count) / max(self._last - at, 1e-9)
