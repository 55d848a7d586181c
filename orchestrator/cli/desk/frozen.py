"""A run's keeper that does not answer: why, and what ends it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.events import AttemptFailed, Phase, PhaseEnded, PhaseStarted, Stamped
from orchestrator.node.base import procs
from orchestrator.phases.notify import PATIENCE
from orchestrator.store import RunFolder


def why_no_answer(folder: RunFolder, known: Sequence[Stamped], waited: float) -> str:
    """Word the answer to a person who stops the run and has `waited` so many seconds for its keeper."""
    if folder.read_notify() and _is_done(known):
        return (
            f"all tasks have ended: the command of --notify is waited for, and killed after {PATIENCE:.0f} s"
        )
    return (
        f"the keeper of the run has not answered for {waited:.0f} s: {what_ends_it(folder)};"
        " then the run is stopped from here"
    )


def what_ends_it(folder: RunFolder) -> str:
    """`kill -9 1234` ends it: a command, and where to type it where that is not here."""
    pids = procs.holding(str(folder.lock))
    if pids:
        return f"`kill -9 {' '.join(map(str, pids))}` ends it"
    return f"`fuser -k {shlex.quote(str(folder.lock))}` ends it on the machine that keeps the run"


def _is_done(known: Sequence[Stamped]) -> bool:
    """Return True when the tasks have been followed to their end, and no other attempt is to come."""
    steps = [one.event for one in known if isinstance(one.event, PhaseStarted | PhaseEnded | AttemptFailed)]
    return bool(steps) and isinstance(steps[-1], PhaseEnded) and steps[-1].phase is Phase.FOLLOW
