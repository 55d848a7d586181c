"""What preflight concludes from what the nodes told it. Pure: facts in, `CheckReported` out.

of_hosts(seen, needs, shared)   each machine by itself, then all of them together
of_network(seen, pairs)         addresses, and what passes between the hosts
"""

from __future__ import annotations

from orchestrator.checks.cluster import across, clashing
from orchestrator.checks.data import not_prepared, of_data
from orchestrator.checks.extra import of_extra
from orchestrator.checks.host import alone
from orchestrator.checks.network import BUSY, of_network
from orchestrator.checks.pairs import of_pairs
from orchestrator.checks.seen import MODULES, PACKAGES, Needs, Seen
from orchestrator.events import CheckReported


def of_hosts(seen: list[Seen], needs: Needs, shared: tuple[tuple[str, ...], ...] = ()) -> list[CheckReported]:
    """Everything that can be said of the hosts; `shared` are the groups that see the same workdir."""
    clash = clashing(seen)
    single = (check for one in seen for check in alone(one, needs, own_ports=one.name not in clash))
    return [*single, *across(seen, needs, shared)]
