"""A task's state as its supervisor knows it, and as much of it on disk as the disk takes."""

from __future__ import annotations

from typing import Any

from ..base.paths import TaskFolder
from . import state

_EVERY = 0.5  # seconds between two saves of how far a gap grew, or of what found no room


class Record:
    """`facts` may be read at any time; change them with `update`."""

    def __init__(self, folder: TaskFolder) -> None:
        self.facts = state.read(folder)
        self._folder = folder
        self._unsaved = False
        self._full = False  # no room, not even for this
        self._again = 0.0

    def update(self, **facts: Any) -> None:
        """What shall be saved at once."""
        self.facts.update(facts)
        self._unsaved = True

    def save(self, now: float, gaps_grew: bool) -> bool:
        """Save what is due; True when the gaps are on disk too."""
        waited = now >= self._again
        at_once = self._unsaved and not self._full
        if not (at_once or (waited and (self._unsaved or gaps_grew))):
            return not gaps_grew
        self._again = now + _EVERY
        try:
            state.write(self._folder, self.facts, state.FOR_GAP if gaps_grew and not self._full else "")
            self._unsaved = gaps_grew = self._full = False
            state.set_aside(self._folder)
        except OSError:
            self._full = True
        return not gaps_grew
