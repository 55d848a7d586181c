"""Where the time goes between the start of the process and the end of its first step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


class Stages:
    """Stages follow each other: one begins where the one before was marked as done."""

    def __init__(self, began: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock() if began is None else began
        self.seconds: dict[str, float] = {}

    def done(self, stage: str) -> None:
        now = self._clock()
        self.seconds[stage] = round(now - self._last, 3)
        self._last = now

    def __str__(self) -> str:
        return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self.seconds.items())


def process_start() -> float | None:
    """On time.monotonic()'s clock; None where there is no /proc."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
    return time.monotonic() - age
