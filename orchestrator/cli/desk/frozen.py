"""A run's keeper that does not answer: what ends it."""

from __future__ import annotations

import shlex

from orchestrator.node.base import procs
from orchestrator.store import RunFolder


def what_ends_it(folder: RunFolder) -> str:
    """`kill -9 1234` ends it: a command, and where to type it where that is not here."""
    pids = procs.holding(str(folder.lock))
    if pids:
        return f"`kill -9 {' '.join(map(str, pids))}` ends it"
    return f"`fuser -k {shlex.quote(str(folder.lock))}` ends it on the machine that keeps the run"
