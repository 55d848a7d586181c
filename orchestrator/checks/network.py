"""Everything between the hosts, one cause told once: of a wrong address all else follows."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.checks.addresses import disturbed, of_addresses
from orchestrator.checks.extra import of_several
from orchestrator.checks.large import interfaces, of_bandwidth, of_large
from orchestrator.checks.pairs import hosts_of, of_pairs
from orchestrator.checks.pings import of_pings
from orchestrator.checks.seen import Seen
from orchestrator.events import CheckReported, Level, PairReported

BUSY = 4.0  # runnable processes for each processor, at which a ping that is not answered proves nothing


def of_network(
    seen: Sequence[Seen],
    pairs: Sequence[PairReported],
    explained: Sequence[str] = (),
    busy_load: float = BUSY,
) -> list[CheckReported]:
    """What is wrong between hosts.

    `explained` are those with an address of which something wrong is known already.
    """
    addresses = list(of_addresses(seen, pairs))
    addresses = [check for check in addresses if check.host not in explained]
    wrong = {check.host for check in addresses if check.level is Level.FAIL} | {*explained}
    astray = disturbed(seen, pairs)
    known = [pair for pair in pairs if pair.target not in wrong and pair.source not in astray]
    own = {one.name: frozenset(interface.ip for interface in one.interfaces) for one in seen}
    busy = [one.name for one in seen if one.facts.cpus and one.facts.load > busy_load * one.facts.cpus]
    hosts = hosts_of(pairs)
    return [
        *addresses,
        *of_pairs(known, own, [name for name in hosts if name not in wrong]),
        *of_large(known, interfaces(seen, known)),
        *of_bandwidth(known),
        *(of_several(seen, interfaces(seen, known)) if len(seen) > 1 else ()),
        *of_pings([name for name in hosts if name not in wrong], known, busy),
    ]
