"""When to signal whom so that a task ends. Pure: the clock and the facts are given.

run --stop--> term --grace--> kill          TERM goes to the leader's group
run, term --leader ended--> linger --> kill TERM goes to every process that it left behind
"""

from __future__ import annotations

from . import state

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
        """What to do now; KILL comes again until nothing is alive."""
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
