"""Which process a pid was, for who looks later: pids are used again."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.node.base import procs


class Identity(NamedTuple):
    """A process that can be told from a later one with the same pid."""

    pid: int
    start_ticks: int
    incarnation: str

    def alive(self) -> bool:
        """Whether that very process runs (a zombie does not)."""
        process = procs.look(self.pid) if self.incarnation == procs.incarnation() else None
        return process is not None and process.start_ticks == self.start_ticks and not process.zombie


def identify(pid: int) -> Identity | None:
    """The identity of a process that is there now."""
    process = procs.look(pid)
    return Identity(pid, process.start_ticks, procs.incarnation()) if process else None
