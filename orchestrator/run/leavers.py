"""Tasks that have ended well while others, which need them, do not move any more. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator import ranges
from orchestrator.model import Completion, TaskId
from orchestrator.run.hang import Life
from orchestrator.text import duration

PATIENCE = 20.0  # seconds without a word from those that are left
HINT = "give every task the same work: it left before the others were connected, or had fewer steps to do"


def missed(
    lives: Mapping[TaskId, Life], left: Mapping[TaskId, float], now: float, completion: Completion
) -> str:
    """Who left and who seems to wait, in one sentence; "" while the others move or none has left.

    `lives` are the tasks that train and are alive, `left` when each of the others ended well.
    """
    if completion is not Completion.ALL or not lives or not left:
        return ""
    quiet = now - max(*left.values(), *(life.heard for life in lives.values()))
    if quiet < PATIENCE:
        return ""
    gone, waiting = ranges.fold(map(str, sorted(left))), ranges.fold(map(str, sorted(lives)))
    have, wait = ("have" if len(left) > 1 else "has"), ("seem" if len(lives) > 1 else "seems")
    return f"{gone} {have} finished, and {waiting} {wait} to wait for that: no word for {duration(quiet)}"
