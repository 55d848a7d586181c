"""Whether each host's `address` is its own: compared with the interfaces of all hosts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from orchestrator.checks.seen import IpKind, Seen, kinds_of
from orchestrator.events import Check, CheckReported, Level, PairReported
from orchestrator.groups import grouped
from orchestrator.ranges import fold

_EVERYWHERE = IpKind.LINK_LOCAL | IpKind.LOOPBACK


def of_addresses(seen: Sequence[Seen], pairs: Sequence[PairReported]) -> Iterator[CheckReported]:
    """What is wrong with an address, or which interface carries it; nothing where it cannot be told.

    An address that no host has, and that leads to the right one all the same, is a NAT's: nothing is wrong.
    """
    owners, to = _owners(seen), by_target(pairs)
    for one in seen:
        own = _own(one)
        if not own:
            continue  # a kernel that does not say
        tried = [pair for pair in to.get(one.name, ()) if pair.resolved]
        wrong = _loopback_name(one, tried) or _foreign(one, tried, owners, seen)
        if wrong is not None:
            yield wrong
            continue
        if ip := _carried(own, tried):
            yield one.says(Check.ADDRESS, Level.OK, own[ip])
            yield from _shared(one, tried, owners)


def disturbed(seen: Sequence[Seen], pairs: Sequence[PairReported]) -> frozenset[str]:
    """Hosts of which what they try proves nothing: answers to an address that two machines have go astray.

    The one whose `address` it is, and those with the same on the interface that carries theirs.
    """
    found = set()
    owners, to = _owners(seen), by_target(pairs)
    for one in seen:
        ip = _carried(_own(one), to.get(one.name, ()))
        for other in _others_with(ip, one, owners):
            theirs = _own(other)
            carrier = {theirs.get(pair.resolved) for pair in to.get(other.name, ())}
            found |= {one.name, other.name} if theirs[ip] in carrier else {one.name}
    return frozenset(found)


def carriers(one: Seen) -> str:
    """`10.0.0.4 on eth0, 10.1.0.4 on ib0`: what may be an `address`; "" for none."""
    return ", ".join(f"{ip} on {name}" for ip, name in _own(one).items() if IpKind.V6 not in kinds_of(ip))


def _own(one: Seen) -> Mapping[str, str]:
    """Its addresses that mean this machine to others, and the interface of each."""
    found = {interface.ip: interface.name for interface in one.interfaces}
    return {ip: name for ip, name in found.items() if not kinds_of(ip) & _EVERYWHERE}


def _carried(own: Collection[str], tried: Sequence[PairReported]) -> str:
    """The address that `address` leads to, where one of the host's interfaces carries it; else ""."""
    return next((pair.resolved for pair in tried if pair.resolved in own), "")


def _owners(seen: Sequence[Seen]) -> dict[str, list[Seen]]:
    """The hosts that have each address."""
    return grouped((ip, one) for one in seen for ip in _own(one))


def by_target(pairs: Sequence[PairReported]) -> dict[str, list[PairReported]]:
    return grouped((pair.target, pair) for pair in pairs)


def _loopback_name(one: Seen, tried: Sequence[PairReported]) -> CheckReported | None:
    """A name that means 127.x.x.x to some hosts: Debian's installer writes 127.0.1.1 into /etc/hosts."""
    if kinds_of(one.host.address):
        return None  # a loopback address as such is told by a check of its own
    bad = [pair for pair in tried if IpKind.LOOPBACK in kinds_of(pair.resolved)]
    if not bad or len({pair.source for pair in tried}) < 2:
        return None
    where = fold(dict.fromkeys(pair.source for pair in bad))
    return one.says(
        Check.ADDRESS,
        Level.FAIL,
        f"{one.host.address} means {bad[0].resolved} on {where}",
        f"/etc/hosts there gives the name a loopback address: {where} would connect to itself; " + _has(one),
        f"delete the name from the line of {bad[0].resolved} in /etc/hosts on {where}, or set `address` "
        "to an IP address",
    )


def _foreign(
    one: Seen,
    tried: Sequence[PairReported],
    owners: Mapping[str, Sequence[Seen]],
    seen: Sequence[Seen],
) -> CheckReported | None:
    """An address that is another machine's, a gateway's or nobody's."""
    own = _own(one)
    for pair in tried:
        ip = pair.resolved
        owner = next(iter(owners.get(ip, ())), None)
        if ip in own or kinds_of(ip) & _EVERYWHERE:
            continue
        said = one.host.address if one.host.address == ip else f"{one.host.address} ({ip})"
        if owner is not None and owner.machine != one.machine:
            return _wrong(one, f"{said} is {owner.name}'s", f"{owner.name} has it on {_own(owner)[ip]}")
        if any(other.tcp for other in tried):
            continue  # it leads there: a NAT's
        gateway = next((other.name for other in seen if ip in other.facts.gateways), None)
        if gateway is not None:
            return _wrong(one, f"{said} is a gateway", f"{gateway} reaches other networks through it")
        if all(not other.tcp and not other.icmp for other in tried):
            return _wrong(
                one, f"{said} is not one of its addresses", "no host has it, and nothing answers there"
            )
        return _wrong(one, f"{said} is not one of its addresses", "another machine answers there")
    return None


def _shared(
    one: Seen, tried: Sequence[PairReported], owners: Mapping[str, Sequence[Seen]]
) -> Iterator[CheckReported]:
    """One that every machine has for itself, such as a bridge of Docker."""
    own = _own(one)
    ip = _carried(own, tried)
    others = _others_with(ip, one, owners)
    if others:
        who, name, theirs = others[0].name, own[ip], _own(others[0])[ip]
        where = f"{name} carries it on both" if name == theirs else f"{name} carries it, and {theirs} there"
        taken = {other_ip for other_ip in owners if _others_with(other_ip, one, owners)}
        hint = (
            ""
            if _choice(one, taken)
            else f"give one of them another: `ip addr` on {one.name} and on {who} shows them"
        )
        yield _wrong(one, f"{ip} is also {who}'s own", f"{where}: {who} would connect to itself", hint, taken)


def _others_with(ip: str, one: Seen, owners: Mapping[str, Sequence[Seen]]) -> list[Seen]:
    """The other machines that have an address too."""
    return [other for other in owners.get(ip, ()) if other.machine != one.machine]


def _choice(one: Seen, taken: Collection[str]) -> str:
    """The first of its addresses that may be an `address`; "" for none."""
    own = (ip for ip in _own(one) if IpKind.V6 not in kinds_of(ip))
    return next((ip for ip in own if ip not in taken), "")


def _wrong(
    one: Seen, found: str, why: str, hint: str = "", taken: Collection[str] = frozenset()
) -> CheckReported:
    first = _choice(one, taken)
    hint = hint or (
        f'set `address = "{first}"` for it in hosts.toml' if first else "set `address` for it in hosts.toml"
    )
    return one.says(Check.ADDRESS, Level.FAIL, found, f"{why}; {_has(one)}", hint)


def _has(one: Seen) -> str:
    return f"{one.name} has {carriers(one) or 'no address of its own'}"
