"""The spread of pieces between hosts, so that the controller's line carries each piece once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Where each host gets each piece that it lacks from: one source for each."""

    sends: Mapping[str, tuple[int, ...]]  # host -> pieces from the controller
    pulls: Mapping[str, Mapping[str, tuple[int, ...]]]  # host -> peer -> pieces from that peer


def plan(
    lacks: Mapping[str, Collection[int]],
    serving: Collection[str],
    blocked: Collection[tuple[str, str]] = (),
) -> Plan:
    """A source for each piece that a host lacks.

    `lacks` has every host that takes part, with nothing for one that has all. `serving` are the hosts that
    peers can ask, `blocked` the pairs (host, peer) between which that has failed. A piece that nobody has
    goes from the controller to one host, in turn, and from there to the others as it arrives: all lines are
    busy at once, and no host gives away much more than the data is long.
    """
    missing = {host: frozenset(pieces) for host, pieces in lacks.items()}
    barred = frozenset(blocked)
    sends: dict[str, list[int]] = {host: [] for host in lacks}
    pulls: dict[str, dict[str, list[int]]] = {host: {} for host in lacks}
    load: Counter[str] = Counter()  # pieces that a host gives away

    def pull(host: str, peers: Collection[str], piece: int) -> bool:
        usable = [peer for peer in peers if (host, peer) not in barred]
        if not usable:
            return False
        peer = min(usable, key=lambda name: load[name])
        load[peer] += 1
        pulls[host].setdefault(peer, []).append(piece)
        return True

    for piece in sorted(frozenset().union(*missing.values())):
        wanting = [host for host in lacks if piece in missing[host]]
        holders = [host for host in lacks if host in serving and piece not in missing[host]]
        if not holders:
            first = min(wanting, key=lambda host: (host not in serving, len(sends[host])))
            sends[first].append(piece)
            wanting.remove(first)
            holders = [first] if first in serving else []
        for host in wanting:
            if not pull(host, holders, piece):
                sends[host].append(piece)
    return Plan(
        {host: tuple(pieces) for host, pieces in sends.items()},
        {host: {peer: tuple(pieces) for peer, pieces in peers.items()} for host, peers in pulls.items()},
    )
