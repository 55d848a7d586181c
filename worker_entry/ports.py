"""Checking whether another task, or a server, responds at a port."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from typing import Any

from worker_entry.failure import ExpectedError

OPEN = "it answers"
GONE_AFTER = 3  # consecutive checks without a response
AFTER_TERM = 25.0  # seconds the chief has for saving what the ps tasks hold


def look(address: str, timeout: float = 2.0) -> str:
    """Try once to reach a port; return OPEN, or why not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as error:
        return error.strerror or str(error)
    return OPEN


class Presence:
    """Tracks whether another task has started, is running, or has gone."""

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
        """Check once, about every half second. Raise if the task has not started in time."""
        answer = self._look()
        if answer == OPEN:
            self.met, self._missed = True, 0
        elif self.met:
            self._missed += 1
        elif self._clock() > self._come_by:
            raise ExpectedError(f"{self._name} did not connect", why=answer, hint="increase --start-timeout")
        return self._missed >= GONE_AFTER


def follow(
    chief: Presence,
    termed: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Any] = time.sleep,
) -> bool:
    """Return True when the chief has come and gone, False when TERM ended it first."""
    leave_by = math.inf
    while not chief.gone():
        if termed():
            leave_by = min(leave_by, clock() + (AFTER_TERM if chief.met else 0))
        if clock() >= leave_by:
            return False
        pause(0.5)
    return True
