"""Whether a task floods its log: by when its bytes were printed, as its node tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

FLOOD = 5e6  # bytes a second, for as long as the window
_WINDOW_NS = 3_000_000_000
_MUCH = 64 << 20  # bytes that need no such window
_LITTLE_NS = 100_000_000  # less is not a rate yet


class Flow:
    """The log of one task as it grows; `add` returns its rate once, when it is that of a flood."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None  # offset, and time in ns
        self._told = False

    def add(self, times: Sequence[tuple[int, int]]) -> float | None:
        """Take in the records of a frame: the bytes from each offset on were printed at that time."""
        for offset, ns in times if not self._told else ():
            if self._since is None or ns <= self._since[1]:
                self._since = offset, ns
                continue
            size, took = offset - self._since[0], ns - self._since[1]
            if took < _LITTLE_NS or (took < _WINDOW_NS and size < _MUCH):
                continue
            rate = size / (took / 1e9)
            if rate >= FLOOD:
                self._told = True
                return rate
            self._since = offset, ns
        return None
