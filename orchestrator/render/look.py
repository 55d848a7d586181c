"""How a viewer wants a run to be shown, and what of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from orchestrator.events import Event, LogLine, Noted, RunPlanned, Stamped
from orchestrator.model import Fold
from orchestrator.run.view import View
from orchestrator.text import count, moment


@dataclass(frozen=True)
class Look:
    fold: Fold | None = None  # None: what suits the place
    timestamps: bool = False
    wanted: Callable[[str], bool] = lambda _task: True  # which tasks' lines
    since: float = 0.0  # seconds since the epoch; older lines are left out
    grep: re.Pattern[str] | None = None  # lines without it are left out
    notes: frozenset[str] = frozenset()  # that were given at the last launch
    view: View = field(default_factory=View)  # what happened before, and is not news

    def leaves_out(self, stamped: Stamped) -> bool:
        """Whether this is a line that nobody asked for; only lines are left out."""
        line = stamped.event
        if not isinstance(line, LogLine):
            return False
        return stamped.at < self.since or (self.grep is not None and not self.grep.search(line.text))


def when(seconds: float) -> str:
    """`03:41:34.123 `: the time of a line, as wide where it is not known."""
    if not seconds:
        return " " * 13
    return f"{moment('%H:%M:%S', seconds)}.{int(seconds % 1 * 1000):03} "


def without(event: Event, notes: frozenset[str], *, counted: bool = False) -> Event | None:
    """An event without the notes that are known already, None when nothing is left of it.

    `counted`: that there are such notes, and what shows them, was said before.
    """
    if isinstance(event, Noted) and event.text in notes:
        return None if counted else Noted("as at the last launch: launch --dry-run")
    if not isinstance(event, RunPlanned):
        return event
    new = tuple(note for note in event.notes if note not in notes)
    known = len(event.notes) - len(new)
    if not known:
        return event
    return msgspec.structs.replace(
        event, notes=(*new, f"{count(known, 'note')} as at the last launch: launch --dry-run")
    )
