"""When to signal whom so that a task ends. Pure: the clock and the facts are given.

run --stop--> term --grace--> kill          TERM goes to the leader's group
run, term --leader ended--> linger --> kill TERM goes to every process that it left behind
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ..base import lenient
from ..base.paths import TaskFolder
from . import state
from .environ import Launch

LINGER = 2.0  # seconds that processes have after their leader

NOTHING = "nothing"
TERM_GROUP = "term group"
TERM_ALL = "term all"
KILL = "kill"
OVER = "over"

_RUN, _TERM, _LINGER, _KILL = "run", "term", "linger", "kill"


class Ending:
    """Ask for an end, then do what `step` says until it says OVER."""

    def __init__(self) -> None:
        self.want = state.WANT_RUN
        self.deadline: float | None = None  # then comes KILL
        self._stage = _RUN

    @property
    def begun(self) -> bool:
        return self._stage != _RUN

    @property
    def killing(self) -> bool:
        return self._stage == _KILL

    def ask(self, want: str, grace: float, now: float) -> None:
        """A later request can only make the end come sooner."""
        if want == state.WANT_KILL:
            self.want = want
        elif want == state.WANT_STOP and self.want != state.WANT_KILL:
            self.want = want
            self._due(now + max(0.0, grace))

    def step(self, now: float, leader_alive: bool, any_alive: bool) -> str:
        """Return what to do now; KILL comes again until nothing is alive."""
        if not any_alive:
            return OVER
        late = self.deadline is not None and now >= self.deadline
        if self._stage == _KILL or self.want == state.WANT_KILL or (self.begun and late):
            self._stage = _KILL
            return KILL
        if not leader_alive and self._stage != _LINGER:
            self._stage = _LINGER
            self._due(now + LINGER)
            return TERM_ALL
        if leader_alive and self.want == state.WANT_STOP and not self.begun:
            self._stage = _TERM
            return TERM_GROUP
        return NOTHING

    def _due(self, when: float) -> None:
        self.deadline = when if self.deadline is None else min(self.deadline, when)


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
        """Return None while a task such as this one may go on; `printed` is its bytes so far."""
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
