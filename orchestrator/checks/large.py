"""Where connections open and large packets vanish: a hole in the MTU. And how fast pairs are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median

from orchestrator.checks.addresses import by_target
from orchestrator.checks.seen import Seen
from orchestrator.events import Check, CheckReported, Level, PairReported
from orchestrator.text import size

_SLOW = 3.0  # times slower than the median pair: beyond what neighbours on one switch differ by
Way = tuple[str, str]  # from, to


def of_large(pairs: Sequence[PairReported], interfaces: Mapping[str, str]) -> Iterator[CheckReported]:
    """A `packets` for each host that swallows large packets, or for each pair; nothing where all arrive.

    `interfaces` are those that carry the hosts' addresses.
    """
    tried: dict[Way, bool] = {}
    for pair in pairs:
        if pair.tcp and pair.large_out is not None and pair.large_back is not None:
            for way, arrived in (
                ((pair.source, pair.target), pair.large_out),
                ((pair.target, pair.source), pair.large_back),
            ):
                tried[way] = tried.get(way, True) and arrived
    holes = {way for way, arrived in tried.items() if not arrived}
    sizes = (pair.packet for pair in pairs if pair.packet and pair.source != pair.target)
    packet = max(sizes, default=1500)
    told: set[Way] = set()
    for name in _worst_first(holes):
        inward = {way for way in tried if way[1] == name and way[0] != name}
        outward = {way for way in tried if way[0] == name and way[1] != name}
        into, out = _all(inward, holes), _all(outward, holes)
        if not (into or out) or len(inward) < 2:
            continue  # of two hosts either may be the one
        lost = (inward if into else set()) | (outward if out else set())
        if lost <= told:
            continue
        told |= lost
        which = "to and from it" if into and out else "to it" if into else "from it"
        yield _hole(name, f"large packets {which} vanish", packet, interfaces.get(name, ""))
    for source, target in sorted(holes - told):
        if (target, source) in told:
            continue
        told.add((source, target))
        yield _hole(target, f"large packets from {source} vanish", packet, interfaces.get(target, ""))


def of_bandwidth(pairs: Sequence[PairReported]) -> Iterator[CheckReported]:
    """A `bandwidth` per host: the slowest of its pairs, with a warning where others are much faster."""
    measured = [pair for pair in pairs if pair.bandwidth]
    if not measured:
        return
    usual = median(pair.bandwidth or 0.0 for pair in measured)
    hosts = dict.fromkeys(name for pair in measured for name in (pair.source, pair.target))
    slow = {pair for pair in measured if (pair.bandwidth or 0.0) * _SLOW < usual}
    for name in hosts:
        own = [pair for pair in measured if name in (pair.source, pair.target)]
        least = min(own, key=lambda pair: pair.bandwidth or 0.0)
        found = f"{size(round(least.bandwidth or 0.0))}/s"
        if own and all(pair in slow for pair in own) and len(own) < len(measured):
            why = f"the usual figure here is {size(round(usual))}/s; every step waits for the slowest host"
            hint = "look at its link with `ethtool`: speed, duplex, errors"
            yield CheckReported(name, Check.BANDWIDTH, Level.WARN, found, why, hint)
        else:
            yield CheckReported(name, Check.BANDWIDTH, Level.OK, found)


def interfaces(seen: Sequence[Seen], pairs: Sequence[PairReported]) -> dict[str, str]:
    """The interface that carries each host's address, where one of its own does."""
    found = {}
    to = by_target(pairs)
    for one in seen:
        own = {interface.ip: interface.name for interface in one.interfaces}
        tried = [pair.resolved for pair in to.get(one.name, ())]
        carrier = next((own[ip] for ip in [*tried, one.host.address] if ip in own), None)
        if carrier is not None:
            found[one.name] = carrier
    return found


def _worst_first(holes: Collection[Way]) -> list[str]:
    counts = Counter(name for way in sorted(holes) for name in way)
    return [name for name, _ in counts.most_common()]


def _all(ways: Collection[Way], holes: Collection[Way]) -> bool:
    return bool(ways) and all(way in holes for way in ways)


def _hole(name: str, found: str, packet: int, interface: str) -> CheckReported:
    why = (
        f"connections open, and of 64 kB nothing arrives: something on the way drops packets of {packet} "
        "bytes and does not say so (an MTU hole); training would hang in its first step"
    )
    hint = (
        f"`ip link set {interface or 'INTERFACE'} mtu 1400` on {name} as root, then preflight again; "
        "or let ICMP `fragmentation needed` through"
    )
    return CheckReported(name, Check.PACKETS, Level.FAIL, found, why, hint, between=True)
