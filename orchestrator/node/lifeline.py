"""How long a task may go on without a keeper: some never exit by themselves, or hang after a failure."""

from __future__ import annotations

import os

from . import state
from .launch import Launch
from .paths import TaskFolder


class Lifeline:
    """Looks at the mtime of the keeper's file, by a clock that does not jump."""

    def __init__(self, launch: Launch, now: float) -> None:
        self._launch = launch
        self._keeper = launch.paths.keeper(launch.folder.run)  # its mtime is a keeper's last word
        self._word = _mtime(self._keeper)
        self._heard = now
        self._next_look = now
        self.tick = min(1.0, launch.lifeline / 4) if launch.lifeline else 3600.0

    def is_cut(self, now: float) -> bool:
        """Whether the last word is too long ago for a task such as this one."""
        if not self._launch.lifeline or now < self._next_look:
            return False
        self._next_look = now + self.tick
        word = _mtime(self._keeper)
        if word != self._word:
            self._word, self._heard = word, now
        return now - self._heard >= self._launch.lifeline and self._depends()

    def _depends(self) -> bool:
        return self._launch.endless or _has_failed_sibling(self._launch)


def _has_failed_sibling(launch: Launch) -> bool:
    return any(_failed(folder) for folder in launch.paths.tasks(launch.folder.run, launch.folder.attempt))


def _failed(folder: TaskFolder) -> bool:
    try:
        found = state.read(folder)
    except OSError:
        return False
    return state.is_final(found) and found["exit_code"] != 0


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
