"""What the pairs of hosts say together: whose port is closed, and who is cut off. One cause is told once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from orchestrator.checks.meanings import meaning, port_of
from orchestrator.events import Check, CheckReported, Closed, Level, PairReported
from orchestrator.groups import grouped
from orchestrator.ranges import fold
from orchestrator.run import reach

Own: TypeAlias = Mapping[str, Collection[str]]  # the addresses of each host's interfaces


def of_pairs(
    pairs: Sequence[PairReported], own: Own | None = None, hosts: Sequence[str] | None = None
) -> list[CheckReported]:
    """A `reach` per host. A host that is cut off from all is named, and not all the others.

    `hosts` are those that are told to be well where nothing is wrong: all that have pairs, by default.
    """
    own = own or {}
    between = [pair for pair in pairs if pair.source != pair.target]
    left = [pair for pair in between if not pair.tcp]
    failed: list[CheckReported] = []
    for rule in (_cut_off, _deaf, _mute, _apart, _mutual, _rest):
        for explained, checks in rule(between, left, own):
            failed += checks
            left = [pair for pair in left if pair not in explained]
    unreached = {check.host for check in failed}
    failed += _selves([pair for pair in pairs if not pair.tcp and pair.source == pair.target], own, unreached)
    bad = {check.host for check in failed}
    known = hosts if hosts is not None else hosts_of(pairs)
    return [*failed, *(CheckReported(name, Check.REACH, Level.OK, "ok") for name in known if name not in bad)]


Found: TypeAlias = Iterator[tuple[Collection[PairReported], list[CheckReported]]]


def _cut_off(between: Sequence[PairReported], left: Sequence[PairReported], own: Own) -> Found:
    """Nothing passes to it or from it, whoever tries, and there are several who do."""
    del own
    silent = {pair for pair in left if Closed.silent(pair.why)}
    for name in hosts_of(left):
        its = [pair for pair in between if name in (pair.source, pair.target)]
        if len({pair.source for pair in its}) < 3 or not all(pair in silent for pair in its):
            continue
        if any(pair.elsewhere for pair in its):
            port = port_of(its[0])
            why = "its other ports or its pings answer: a firewall on it drops task ports both ways"
            hint = f"open TCP port {port} on it, in and out: `ufw allow {port}/tcp`, and the others' ports"
            yield its, [_fail(name, f"no task port is reached from it, nor its own: {its[0].why}", why, hint)]
        else:
            why = "neither TCP nor a ping: all traffic between them is cut"
            hint = "look at its network with `ip addr` and `ip route`: cable, VLAN, security group"
            yield its, [_fail(name, "nothing passes between it and the others", why, hint)]


def _deaf(between: Sequence[PairReported], left: Sequence[PairReported], own: Own) -> Found:
    """None of several others reaches it, all for one reason."""
    for name in hosts_of(left):
        missed = [pair for pair in left if pair.target == name]
        others = {pair.source for pair in between if pair.target == name}
        reasons = {pair.why for pair in missed}
        if len(others) > 1 and {pair.source for pair in missed} == others and len(reasons) == 1:
            yield missed, [_target(name, "no other host reaches", missed, own)]


def _mute(between: Sequence[PairReported], left: Sequence[PairReported], own: Own) -> Found:
    """It reaches nobody, and somebody else reaches those that it does not."""
    del own
    for name in hosts_of(left):
        missed = [pair for pair in left if pair.source == name]
        tried = [pair for pair in between if pair.source == name]
        reached = {pair.target for pair in between if pair.tcp and pair.source != name}
        if len(tried) > 1 and len(missed) == len(tried) and all(pair.target in reached for pair in tried):
            reasons = dict.fromkeys(pair.why for pair in missed)
            why = "the others reach each other: this host or its network stops outgoing connections"
            hint = "look at its routes (`ip route`) and at its firewall's outgoing rules"
            yield missed, [_fail(name, f"reaches no other host: {', '.join(reasons)}", why, hint)]


def _apart(between: Sequence[PairReported], left: Sequence[PairReported], own: Own) -> Found:
    """Two groups of hosts between which nothing passes."""
    silent = {(pair.source, pair.target): pair for pair in left if Closed.silent(pair.why)}
    known = hosts_of([pair for pair in between if pair.tcp])
    groups = reach.sides([way for way in silent if {*way} <= {*known}], known) if silent else []
    if len(groups) == 2 and len(groups[1]) > 1:
        across = [pair for way, pair in silent.items() if (way[0] in groups[0]) != (way[1] in groups[0])]
        found = f"{fold(groups[0])} and {fold(groups[1])} do not reach each other: {across[0].why}"
        why, hint = _means(across[0], own)
        yield across, [_fail(name, found, why, hint) for name in groups[1]]


def _mutual(between: Sequence[PairReported], left: Sequence[PairReported], own: Own) -> Found:
    """Hosts that do not reach each other, for one reason: first the one of most such pairs."""
    ways = {(pair.source, pair.target): pair for pair in left if Closed.silent(pair.why)}
    both = [way for way, pair in ways.items() if (back := ways.get(way[::-1])) and back.why == pair.why]
    two = len(hosts_of(between)) == 2
    while both:
        hub = max((way[0] for way in both), key=lambda name: len([way for way in both if way[0] == name]))
        why = ways[next(way for way in both if way[0] == hub)].why
        partners = [way[1] for way in both if way[0] == hub and ways[way].why == why]
        explained = [ways[way] for way in ways if hub in way and {*way} & {*partners}]
        first = ways[hub, partners[0]]
        who = "the two" if two else f"{hub} and {fold(partners)}"
        told = _means(first, own, both=True)
        found = f"{who} do not reach each other: {why}"
        yield explained, [_fail(name, found, *told) for name in (hub, *partners)]
        both = [way for way in both if not (hub in way and {*way} & {*partners})]


def _rest(between: Sequence[PairReported], left: Sequence[PairReported], own: Own) -> Found:
    """Whatever is left, by host and reason."""
    del between
    for (target, _), missed in grouped(((pair.target, pair.why), pair) for pair in left).items():
        sources = fold(dict.fromkeys(pair.source for pair in missed))
        yield missed, [_target(target, f"{sources} cannot reach", missed, own)]


def _selves(closed: Sequence[PairReported], own: Own, unreached: Collection[str]) -> Iterator[CheckReported]:
    """A task connects to its own address too. Where others do not reach it either, that is told already."""
    for pair in closed:
        if pair.target in unreached:
            continue
        why, hint = _self_meaning(pair, own)
        found = f"cannot reach its own address {pair.address}: {pair.why}"
        yield _fail(pair.target, found, f"a task connects to its own address too; {why}", hint)


def _self_meaning(pair: PairReported, own: Own) -> tuple[str, str]:
    hint = "set `address` to one that leads to this host from all hosts, itself included"
    if not Closed.silent(pair.why):
        return _means(pair, own)[0], hint
    if _is_its_own(pair, own):
        port = port_of(pair)
        return (
            "the address is its own: its firewall drops what it sends to itself",
            f"`iptables -I INPUT -i lo -j ACCEPT` on it, as root; or open TCP port {port} there",
        )
    if own.get(pair.target):
        return "the others reach it by a NAT, which does not lead back", hint
    return "perhaps a NAT that does not lead back", hint


def _target(name: str, who: str, missed: Sequence[PairReported], own: Own) -> CheckReported:
    why, hint = _means(missed[0], own)
    ports = ", ".join(dict.fromkeys(port_of(pair) for pair in missed))
    return _fail(name, f"{who} its task port {ports}: {missed[0].why or 'no answer'}", why, hint)


def _means(pair: PairReported, own: Own, *, both: bool = False) -> tuple[str, str]:
    return meaning(pair, _is_its_own(pair, own), both=both)


def _is_its_own(pair: PairReported, own: Own) -> bool:
    return pair.resolved in own.get(pair.target, ())


def hosts_of(pairs: Sequence[PairReported]) -> list[str]:
    return list(dict.fromkeys(name for pair in pairs for name in (pair.target, pair.source)))


def _fail(host: str, found: str, why: str, hint: str) -> CheckReported:
    return CheckReported(host, Check.REACH, Level.FAIL, found, why, hint, between=True)
