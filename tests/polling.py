"""Waiting for what another process does, by looking again and again."""

import time
from collections.abc import Callable
from typing import TypeVar

FIRST, GROWTH, LONGEST = 0.003, 1.3, 0.05  # seconds between two looks; a look often reads all of /proc

T = TypeVar("T")


def poll(condition: Callable[[], T], seconds: float) -> T:
    """The condition's first true value, or what it is after so many seconds."""
    deadline = time.monotonic() + seconds
    pause = FIRST
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * GROWTH, LONGEST)
    return value
