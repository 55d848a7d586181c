"""What the pairs of hosts say together: whose port is closed, and who is cut off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.ranges import fold

# What a failed connection means when the peer's agent is known to listen: (why, what to try).
_MEANINGS = {
    "timed out": (
        "packets to TCP port {port} vanish: a firewall on that host or on the way drops them",
        "open TCP port {port} there: ufw allow {port}/tcp, or firewall-cmd --add-port={port}/tcp",
    ),
    "refused": (
        "our agent listens on port {port} there: the address leads elsewhere, or a firewall rejects",
        "look at its `address` in hosts.toml, then at the firewall of that host (TCP port {port})",
    ),
    "no route": (
        "the network knows no way there, or a firewall rejects (firewalld answers like that)",
        "look at its `address` in hosts.toml, then open TCP port {port}: firewall-cmd --add-port={port}/tcp",
    ),
    "does not resolve": (
        "that name is not known there; every host must resolve every address alike",
        "an IP address as `address` in hosts.toml, or the name in /etc/hosts of all hosts",
    ),
    "answered by something else": (
        "another program or another machine answers at that address",
        "look at its `address` in hosts.toml: it has to lead to that host from all others",
    ),
}
_UNKNOWN = ("", "look at its `address` in hosts.toml and at the firewall of that host (TCP port {port})")


def of_pairs(pairs: Sequence[PairReported]) -> list[CheckReported]:
    """A `reach` and a `ping` per host. Where a host is cut off from all, it is named and not all others."""
    hosts = list(dict.fromkeys(name for pair in pairs for name in (pair.target, pair.source)))
    closed = [pair for pair in pairs if not pair.tcp]
    cut_off = {name for name in hosts if _cut_off(name, pairs)}
    failed = [
        *_selves(closed),
        *_sources(pairs, cut_off),
        *_targets(
            pairs, [pair for pair in closed if pair.source != pair.target and pair.source not in cut_off]
        ),
    ]
    bad = {check.host for check in failed}
    fine = [CheckReported(name, "reach", Level.OK, "ok") for name in hosts if name not in bad]
    return [*failed, *fine, *_pings(hosts, pairs)]


def _cut_off(name: str, pairs: Sequence[PairReported]) -> bool:
    """It reaches nobody, and somebody else reaches those it does not."""
    own = [pair for pair in pairs if pair.source == name != pair.target]
    reached = {pair.target for pair in pairs if pair.tcp and pair.source not in (name, pair.target)}
    return len(own) > 1 and not any(pair.tcp for pair in own) and all(pair.target in reached for pair in own)


def _selves(closed: Sequence[PairReported]) -> Iterator[CheckReported]:
    for pair in closed:
        if pair.source == pair.target:
            why = "a task connects to its own address too; " + (
                "this one is not the machine's own (NAT?)" if pair.why == "timed out" else _meaning(pair)[0]
            )
            hint = "set `address` to one that leads to this host from all hosts, itself included"
            yield _fail(pair.target, f"cannot reach its own address {pair.address}: {pair.why}", why, hint)


def _sources(pairs: Sequence[PairReported], cut_off: set[str]) -> Iterator[CheckReported]:
    for name in sorted(cut_off):
        reasons = dict.fromkeys(pair.why for pair in pairs if pair.source == name != pair.target)
        why = "the others reach each other: something on this host or its network stops outgoing connections"
        hint = "look at its routes (ip route) and at its firewall's outgoing rules"
        yield _fail(name, f"reaches no other host: {', '.join(reasons)}", why, hint)


def _targets(pairs: Sequence[PairReported], closed: Sequence[PairReported]) -> Iterator[CheckReported]:
    groups: dict[tuple[str, str], list[PairReported]] = defaultdict(list)
    for pair in closed:
        groups[pair.target, pair.why].append(pair)
    for (target, reason), missed in groups.items():
        sources = {pair.source for pair in missed}
        others = {pair.source for pair in pairs if pair.target == target != pair.source}
        who = (
            "no other host reaches"
            if sources == others and len(others) > 1
            else f"{fold(sources)} cannot reach"
        )
        why, hint = _meaning(missed[0])
        ports = ", ".join(dict.fromkeys(_port(pair) for pair in missed))
        yield _fail(target, f"{who} its task port {ports}: {reason or 'no answer'}", why, hint)


def _pings(hosts: Sequence[str], pairs: Sequence[PairReported]) -> Iterator[CheckReported]:
    for name in hosts:
        answers = {pair.icmp for pair in pairs if pair.target == name and pair.tcp}
        if False in answers:
            why = "only ICMP is blocked: training does not need it"
            yield CheckReported(name, "ping", Level.WARN, "no answer to ping", why)
        elif answers:
            yield CheckReported(name, "ping", Level.OK, "ok" if True in answers else "not measured")


def _meaning(pair: PairReported) -> tuple[str, str]:
    why, hint = _MEANINGS.get(pair.why, _UNKNOWN)
    port = _port(pair)
    return why.format(port=port), hint.format(port=port)


def _port(pair: PairReported) -> str:
    return pair.address.rpartition(":")[2]


def _fail(host: str, found: str, why: str, hint: str) -> CheckReported:
    return CheckReported(host, "reach", Level.FAIL, found, why, hint)
