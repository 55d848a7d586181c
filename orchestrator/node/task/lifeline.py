"""How long a task may go on without a keeper.

Some never exit by themselves, or hang after a failure: their lifeline is cut. Others may have been
replaced by tasks of a later attempt while nobody could reach this host: they are fenced.
"""

from __future__ import annotations

import time

from ..base import lenient
from ..base.paths import TaskFolder
from ..base.tuples import NamedTuple
from . import state
from .launch import Launch

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Cut(NamedTuple):
    """Why a task may not go on, and how long it may take to end."""

    why: str
    grace: float


class Lifeline:
    """Looks at the mtime of the keeper's file, and at what the task prints and reports.

    By a clock that does not jump, and that also counts the time in which the machine was suspended.
    """

    def __init__(self, launch: Launch, now: float) -> None:
        self._launch = launch
        self._keeper = launch.paths.keeper(launch.folder.run)  # its mtime is a keeper's last word
        self._word = lenient.changed(self._keeper, 0.0)
        self._own: tuple[int, int] = (0, 0)  # bytes that the task has printed, and reported
        self._heard = self._spoke = time.clock_gettime(_BOOTTIME)
        self._next_look = now
        limits = [limit for limit in (launch.lifeline, launch.fence) if limit]
        self.tick = min(1.0, min(limits) / 4) if limits else 3600.0

    def cut(self, now: float, printed: int) -> Cut | None:
        """None while a task such as this one may go on; `printed` is its bytes so far."""
        lifeline, fence = self._launch.lifeline, self._launch.fence
        if now < self._next_look or not (lifeline or fence):
            return None
        self._next_look = now + self.tick
        clock = time.clock_gettime(_BOOTTIME)
        word, own = lenient.changed(self._keeper, 0.0), (printed, lenient.size(self._launch.folder.report))
        if word != self._word:
            self._word, self._heard = word, clock
        if own != self._own:
            self._own, self._spoke = own, clock
        if fence and clock - max(self._heard, self._spoke) >= fence:
            why = f"no keeper, and nothing printed, for {fence:g} s: its host may have been replaced"
            return Cut(why, 0.0)  # its peers are gone: there is nothing that it could still save
        if lifeline and clock - self._heard >= lifeline and self._depends():
            return Cut(f"no keeper for {lifeline:g} s", self._launch.grace)
        return None

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
