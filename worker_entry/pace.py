"""Steps per second, without the first step: that one is the trace of the function, not training."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._after_first: float | None = None
        self._last = self._started
        self._steps = 0

    def step(self) -> None:
        self._last = self._clock()
        self._steps += 1
        if self._after_first is None:
            self._after_first = self._last

    @property
    def seconds(self) -> float:
        return self._last - self._started

    @property
    def steps_per_second(self) -> float:
        if self._after_first is None:
            return 0.0
        if self._steps == 1:
            return 1 / max(self.seconds, 1e-9)
        return (self._steps - 1) / max(self._last - self._after_first, 1e-9)
