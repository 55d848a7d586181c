"""Pairs of hosts that do not reach each other, in words: from connections that agents have tried. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orchestrator.events import Closed
from orchestrator.ranges import fold

Pair = tuple[str, str]  # who tried, and whom

_SHOWN = 3  # pairs


def closed(tried: Mapping[Pair, str]) -> frozenset[Pair]:
    """The pairs between which nothing passes; `tried` has why each connection failed, "" where it did not."""
    return frozenset(pair for pair, why in tried.items() if Closed.silent(why))


def in_words(pairs: Collection[Pair], hosts: Collection[str]) -> str:
    """`node1 and node3 do not reach each other`; "" for no pairs.

    Hosts that are cut off from all the others are named together, and not each pair of them.
    """
    if not pairs:
        return ""
    groups = sides(pairs, hosts)
    if len(groups) == 2:
        return f"{fold(groups[0])} and {fold(groups[1])} do not reach each other"
    both = sorted({tuple(sorted(pair)) for pair in pairs if pair[::-1] in pairs})
    one_way = sorted(pair for pair in pairs if pair[::-1] not in pairs)
    said = [f"{first} and {second} do not reach each other" for first, second in both]
    said += [f"{source} does not reach {target}" for source, target in one_way]
    more = f" (and {len(said) - _SHOWN} more pairs)" if len(said) > _SHOWN else ""
    return ", ".join(said[:_SHOWN]) + more


def sides(pairs: Collection[Pair], hosts: Collection[str]) -> list[list[str]]:
    """The groups within which hosts reach each other, when between two groups nothing passes either way."""
    left, sides = sorted(hosts), []
    while left:
        side, waiting = [], [left.pop(0)]
        while waiting:
            host = waiting.pop()
            side.append(host)
            near = [other for other in left if (host, other) not in pairs and (other, host) not in pairs]
            left = [other for other in left if other not in near]
            waiting += near
        sides.append(sorted(side))
    whole = all(
        (a, b) in pairs and (b, a) in pairs
        for number, side in enumerate(sides)
        for other in sides[number + 1 :]
        for a in side
        for b in other
    )
    return sorted(sides, key=lambda side: (-len(side), side)) if whole else []
