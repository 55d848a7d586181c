"""What preflight concludes from what the nodes told it. Pure: facts in, `CheckReported` out.

of_hosts(seen, needs, shared)   each machine by itself, then all of them together
of_pairs(pairs)                 who reaches whose task port
"""

from __future__ import annotations

from orchestrator.checks.cluster import across, clashing
from orchestrator.checks.host import alone
from orchestrator.checks.pairs import of_pairs
from orchestrator.checks.seen import PACKAGES, Needs, Seen
from orchestrator.events import CheckReported

__all__ = ["PACKAGES", "Needs", "Seen", "of_hosts", "of_pairs"]


def of_hosts(seen: list[Seen], needs: Needs, shared: tuple[tuple[str, ...], ...] = ()) -> list[CheckReported]:
    """Everything that can be said of the hosts; `shared` are the groups that see the same workdir."""
    clash = clashing(seen)
    single = (check for one in seen for check in alone(one, needs, own_ports=one.name not in clash))
    return [*single, *across(seen, needs, shared)]
