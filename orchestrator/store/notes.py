"""The notes that a launch gave, so that the next one in the same folder need not give them again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from orchestrator.events import Noted, Phase, PhaseEnded, PhaseStarted, RunPlanned, Stamped
from orchestrator.store.known import state_root
from orchestrator.store.memory import Memory

_KEEP = 30 * 86_400.0  # seconds


class Notes:
    """What was given at the last launch from a folder; nothing when that cannot be read."""

    def __init__(self, here: Path, root: Path | None = None) -> None:
        self._memory = Memory(root or state_root() / "notes", _KEEP, list[str])
        self._name = hashlib.sha256(os.fsencode(here)).hexdigest()[:32]
        self._stage = False
        self._given: set[str] = set()

    def read(self) -> frozenset[str]:
        return frozenset(self._memory.read(self._name) or ())

    def hear(self, stamped: Stamped) -> None:
        """Take a note of a plan or of its code; others tell what happens now, and are given each time."""
        match stamped.event:
            case RunPlanned(notes=notes):
                self._given.update(notes)
            case PhaseStarted(phase=phase):
                self._stage = phase is Phase.STAGE
            case PhaseEnded():
                self._stage = False
            case Noted(text=text) if self._stage:
                self._given.add(text)

    def write(self) -> None:
        """Remember what was heard, and only that."""
        self._memory.write(self._name, sorted(self._given))
