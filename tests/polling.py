"""Waiting for another process by polling."""

import time
from collections.abc import Callable
from typing import TypeVar

FIRST, GROWTH, LONGEST = 0.003, 1.3, 0.05  # seconds between two checks; a check often reads all of /proc

T = TypeVar("T")


def poll(condition: Callable[[], T], seconds: float) -> T:
    """Return the condition's first true value, or its value after `limit` seconds."""
    deadline = time.monotonic() + seconds
    pause = FIRST
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * GROWTH, LONGEST)
    return value
