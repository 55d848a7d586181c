"""Who does not answer pings, when TCP gets through: a host that drops ICMP, named once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from orchestrator.events import Check, CheckReported, Level, PairReported
from orchestrator.ranges import fold

_HARMLESS = "ICMP is blocked there: training does not need it"


def of_pings(
    hosts: Sequence[str], pairs: Sequence[PairReported], busy: Collection[str] = ()
) -> Iterator[CheckReported]:
    """A `ping` per host; `busy` are those with a load at which silence proves nothing."""
    through = [pair for pair in pairs if pair.tcp]
    measured = [
        pair for pair in through if pair.icmp is not None and not {pair.source, pair.target} & {*busy}
    ]
    blockers = _blockers(measured)
    left = [pair for pair in measured if not pair.icmp and not {pair.source, pair.target} & blockers]
    for name in hosts:
        missed = fold(dict.fromkeys(pair.source for pair in left if pair.target == name))
        if name in blockers:
            yield CheckReported(name, Check.PING, Level.WARN, "no answer to ping", _HARMLESS)
        elif missed:
            why = "ICMP is blocked between them: training does not need it"
            yield CheckReported(name, Check.PING, Level.WARN, f"{missed} cannot ping it", why)
        elif any(pair.target == name for pair in through):
            answered = any(pair.target == name and pair.icmp for pair in measured)
            yield CheckReported(name, Check.PING, Level.OK, "ok" if answered else "not measured")


def _blockers(measured: Sequence[PairReported]) -> frozenset[str]:
    """The hosts that drop ICMP themselves: they do not hear their own pings, or nobody's, while others do.

    Who drops what comes in hears no answers to its own pings either, so all others look silent from there.
    """
    alone = {pair.target for pair in measured if pair.source == pair.target and not pair.icmp}
    rest = [
        pair for pair in measured if not {pair.source, pair.target} & alone and pair.source != pair.target
    ]
    deaf = set()
    for name in dict.fromkeys(pair.target for pair in rest):
        inward = [pair for pair in rest if pair.target == name]
        others = [pair for pair in rest if name not in (pair.source, pair.target)]
        if len(inward) > 1 and not any(pair.icmp for pair in inward) and any(pair.icmp for pair in others):
            deaf.add(name)
    return frozenset(alone | deaf)
