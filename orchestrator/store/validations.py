"""Which hosts were validated, from one launch to the next: a small file for each host and program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.run.validity import DAY, Validation
from orchestrator.store.memory import Memory


class Validations:
    """The memory in one folder; a host of which nothing can be read is validated."""

    def __init__(self, folder: Path) -> None:
        self._memory = Memory(folder, DAY, Validation)

    def read(self, host: str, subject: str) -> Validation | None:
        found = self._memory.read(_name(host, subject))
        if found is not None and found.speed is not None and not found.speed.sound:
            return replace(found, speed=None)
        return found

    def write(self, host: str, subject: str, validation: Validation) -> None:
        self._memory.write(_name(host, subject), validation)

    def forget(self, host: str, subject: str = "") -> None:
        """One validation of a host, or all of them; raise OSError when that cannot be removed."""
        self._memory.forget(f"{host}-{subject}")


def _name(host: str, subject: str) -> str:
    return f"{host}-{subject}.json"
