"""Hosts that were validated, from one launch to the next: a small file for each host and program.

It is a convenience: what is damaged, missing or no file of ours is not remembered, and a full disk forgets.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from orchestrator.plainfile import make_folder, read_plain, write_atomically
from orchestrator.run.validity import DAY

_MOST = 100  # bytes of a file


class Validations:
    """The memory in one folder; other commands may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def age(self, host: str, subject: str) -> float | None:
        """How many seconds ago this was validated on a host; None: not within a day."""
        try:
            at = msgspec.json.decode(read_plain(self._path(host, subject), _MOST), type=float)
        except (OSError, ValueError, RecursionError):
            return None
        age = time.time() - at
        return age if 0 <= age < DAY else None  # a clock may have been set back

    def write(self, host: str, subject: str) -> None:
        """Remember it, and remove what is too old to count."""
        with contextlib.suppress(OSError):
            make_folder(self._folder)
            for entry in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    if not 0 <= time.time() - entry.lstat().st_mtime < DAY:
                        entry.unlink()
            write_atomically(self._path(host, subject), msgspec.json.encode(time.time()))

    def forget(self, host: str) -> None:
        """Forget all validations of a host; raise OSError when one cannot be removed."""
        for path in self._folder.glob(f"{host}-*"):
            path.unlink(missing_ok=True)

    def _path(self, host: str, subject: str) -> Path:
        return self._folder / f"{host}-{subject}.json"
