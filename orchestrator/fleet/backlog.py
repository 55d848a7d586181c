"""A host's frames that nobody has looked at yet: bounded, so that no host fills our memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

ROOM = 32 << 20  # bytes of one host, with which its reader waits for us
MOST = 256 << 20  # bytes, with which a host is let go of: answers are awaited behind them
_FRAME = 1024  # bytes that a frame takes beside its payload
_LOOK = 0.05


class Backlog:
    """Counts the frames of one session between its reader and whoever takes them."""

    def __init__(self) -> None:
        self._size = 0
        self._changed = threading.Condition()

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._size

    @property
    def too_much(self) -> bool:
        return self._size > MOST

    def add(self, payload: bytes) -> None:
        with self._changed:
            self._size += len(payload) + _FRAME

    def take(self, payload: bytes) -> None:
        with self._changed:
            self._size -= len(payload) + _FRAME
            self._changed.notify_all()

    def wait(self, urgent: Callable[[], bool]) -> None:
        """Until there is room again, or reading on is `urgent`."""
        while self._size > ROOM and not urgent():
            with self._changed:
                self._changed.wait(_LOOK)
