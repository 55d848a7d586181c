"""What this machine remembers from one command to the next, as small files that may be removed at any time.

It is a convenience: what is damaged, missing or no file of ours is not remembered, and a full disk forgets.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from orchestrator.plainfile import make_folder, read_plain, write_atomically

_MOST = 1 << 20  # bytes of a file


class Memory:
    """The files of one subject; other commands may use them at the same time."""

    def __init__(self, folder: Path, keep: float) -> None:
        """`keep` is for how many seconds what was written counts."""
        self._folder = folder
        self._keep = keep

    def read(self, name: str) -> bytes | None:
        path = self._folder / name
        try:
            return read_plain(path, _MOST) if self._counts(path) else None
        except OSError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Remember it, and remove what is too old to count."""
        with contextlib.suppress(OSError):
            make_folder(self._folder)
            self._prune()
            write_atomically(self._folder / name, data)

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
