"""What this machine remembers from one command to the next, as small files that may be removed at any time.

It is a convenience: what is damaged, missing or no file of ours is not remembered, and a full disk forgets.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from orchestrator.plainfile import make_folder, read_plain, write_atomically

_MOST = 1 << 20  # bytes of a file

T = TypeVar("T")


class Memory(Generic[T]):
    """The files of one subject, as JSON; other commands may use them at the same time."""

    def __init__(self, folder: Path, keep: float, kind: type[T]) -> None:
        """`keep` is for how many seconds what was written counts."""
        self._folder = folder
        self._keep = keep
        self._kind = kind

    def read(self, name: str) -> T | None:
        path = self._folder / name
        try:
            if not self._counts(path):
                return None
            return msgspec.json.decode(read_plain(path, _MOST), type=self._kind)
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, name: str, value: T) -> None:
        """Remember it, and remove what is too old to count."""
        with contextlib.suppress(OSError):
            make_folder(self._folder)
            self._prune()
            write_atomically(self._folder / name, msgspec.json.encode(value))

    def forget(self, prefix: str) -> None:
        """Whatever has a name that begins so; raise OSError when it cannot be removed."""
        for path in self._folder.glob(f"{prefix}*"):
            path.unlink(missing_ok=True)

    def _prune(self) -> None:
        for entry in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if not self._counts(entry):
                    entry.unlink()

    def _counts(self, path: Path) -> bool:
        return 0 <= time.time() - path.lstat().st_mtime < self._keep
