"""What a connection that fails means, when the peer's agent is known to listen, and what to try. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.events import Closed, PairReported

_ADDRESS = "check its `address` in hosts.toml"
_OPEN = "open TCP port {port} {there}: `ufw allow {port}/tcp`, or `firewall-cmd --add-port={port}/tcp`"
_NETWORK = "look at the network between them (cable, VLAN, security group, `ip route`), then at a firewall"
_NOTHING = (
    "not TCP port {port}, not SSH, not a ping gets there: all traffic is cut, or a firewall drops all of it"
)
_MEANINGS: Mapping[str, tuple[str, str]] = {
    Closed.UNRESOLVED: (
        "that name is not known there; every host must resolve every address alike",
        "set an IP address as `address` in hosts.toml, or add the name to /etc/hosts of all hosts",
    ),
    Closed.FOREIGN: (
        "another program or another machine answers at that address",
        f"{_ADDRESS}: it has to lead to that host from all others",
    ),
}


def meaning(pair: PairReported, its_own: bool = False, *, both: bool = False) -> tuple[str, str]:
    """(why, what to try); `its_own` when the address is known to be one of the target's interfaces."""
    port = port_of(pair)
    there = "on both" if both else "there"
    why, hint = _of(pair, its_own=its_own)
    return why.format(port=port, there=there), hint.format(port=port, there=there)


def port_of(pair: PairReported) -> str:
    return pair.address.rpartition(":")[2]


def _of(pair: PairReported, *, its_own: bool) -> tuple[str, str]:
    if pair.why == Closed.TIMED_OUT:
        if pair.elsewhere is False:
            return _NOTHING, _NETWORK
        more = "; other traffic gets there" if pair.elsewhere else ""
        return (
            f"packets to TCP port {{port}} vanish: a firewall on that host or on the way drops them{more}",
            _OPEN,
        )
    if pair.why == Closed.REFUSED:
        if its_own:
            return (
                "our agent listens on port {port} there, and the address is its own: a firewall rejects",
                _OPEN,
            )
        why = "our agent listens on port {port} there: the address leads elsewhere, or a firewall rejects"
        return why, f"{_ADDRESS}, then at the firewall of that host (TCP port {{port}})"
    if pair.why == Closed.NO_ROUTE:
        if pair.elsewhere:
            return "other traffic gets there: a firewall rejects (firewalld answers like that)", _OPEN
        why = "the network knows no way there, or a firewall rejects (firewalld answers like that)"
        return why, f"{_ADDRESS} and at `ip route` on both, then open TCP port {{port}} there"
    unknown = ("", f"{_ADDRESS} and at the firewall of that host (TCP port {{port}})")
    return _MEANINGS.get(pair.why, unknown)
