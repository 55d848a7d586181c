"""Hosts that were validated, from one launch to the next: a small file for each host and program."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.run.validity import DAY
from orchestrator.store.memory import Memory


class Validations:
    """The memory in one folder; a host of which nothing can be read is validated."""

    def __init__(self, folder: Path) -> None:
        self._memory = Memory(folder, DAY, float)

    def age(self, host: str, subject: str) -> float | None:
        """How many seconds ago this was validated on a host; None: not within a day."""
        at = self._memory.read(_name(host, subject))
        age = -1.0 if at is None else time.time() - at
        return age if 0 <= age < DAY else None  # a clock may have been set back

    def write(self, host: str, subject: str) -> None:
        self._memory.write(_name(host, subject), time.time())

    def forget(self, host: str) -> None:
        """Forget all validations of a host; raise OSError when one cannot be removed."""
        self._memory.forget(f"{host}-")


def _name(host: str, subject: str) -> str:
    return f"{host}-{subject}.json"
