"""How a host is reached: the argument for `ssh`, and the address for the other tasks."""

from __future__ import annotations

import ipaddress
import re
from typing import TypeAlias

from orchestrator.config.mistakes import Wrong, show
from orchestrator.value import Value

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOSTNAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOOPBACK_NAMES = {"localhost", "localhost.localdomain", "ip6-localhost"}


IpAddress: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


class Destination(Value):
    """The parts of `train@gpu-01:2200`."""

    host: str
    user: str | None = None
    port: int | None = None


def read_target(given: str) -> Destination:
    """Parse `user@host:port`; IPv6 as `[v6]:port` or bare. Raise Wrong."""
    login, _, place = given.rpartition("@")
    usual = re.fullmatch(r"(?:[^-@\s][^\s]*@)?[^-@\s][^@\s]*", given) and not re.search(r"://|[,{}]", given)
    host, port = _split_port(place) if usual else ("", None)
    if url := re.fullmatch(r"[a-z]+://((?:[^\s@/]+@)?[^\s@/]+)/?", given):
        raise Wrong(f"must not be a URL, such as {show(given)}; write {show(url[1])}")
    if not host:
        what = f"is not a host such as train@gpu-01:2200: {show(given)}"
        raise Wrong(f"{what}; options belong in ~/.ssh/config, and several hosts are written gpu-[01-04]")
    return Destination(host, login or None, port)


def read_address(given: str) -> str:
    """Return a host name or an IP address, IPv6 without brackets and in its short form. Raise Wrong."""
    host, port = ("", None) if re.search("[@/]", given) else _split_port(given)
    if port is not None:
        raise Wrong(f"must be without a port, not {show(given)}; write task_port = {port}")
    ip = ip_of(host)
    if ip is not None and ip.is_unspecified:
        raise Wrong(f"must be an address other tasks can connect to, not {show(given)}")
    if ip is None and (len(host) > 253 or re.fullmatch(r"[0-9.]+", host) or not _HOSTNAME.fullmatch(host)):
        raise Wrong(f"must be only a host name or an IP address, not {show(given)}")
    return str(ip or host)


def read_name(given: str) -> str:
    """Return a host's name for messages and options. Raise Wrong."""
    if not _NAME.fullmatch(given) and ip_of(given) is None:
        raise Wrong(
            f"may have letters, digits, . _ and - only, starting with a letter or digit, not {show(given)}"
        )
    return given


def is_loopback(address: str) -> bool:
    """Return True for an IP address or a name of loopback (RFC 6761, /etc/hosts)."""
    ip, name = ip_of(address), address.lower()
    return ip.is_loopback if ip else name in _LOOPBACK_NAMES or name.endswith(".localhost")


def ip_of(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _split_port(given: str) -> tuple[str, int | None]:
    if given.startswith("["):
        match = re.fullmatch(r"\[([^]]*)\](?::(.*))?", given)
        if match is None or not isinstance(ip_of(match[1]), ipaddress.IPv6Address):
            raise Wrong(f"is not written as [IPv6]:port, with both brackets: {show(given)}")
        return match[1], None if match[2] is None else _port(match[2], given)
    host, colon, port = given.rpartition(":")
    if ":" in host:  # fd00::5:2200 may be an address of either kind
        if ip_of(given) is None or (port.isdigit() and ip_of(host) is not None):
            raise Wrong(f"must be an IPv6 address, in brackets if a port follows, not {show(given)}")
        return given, None
    return (host, _port(port, given)) if colon else (given, None)


def _port(digits: str, given: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 1 <= int(digits) <= 65535:
        raise Wrong(f"has a wrong port after the colon (1 to 65535): {show(given)}")
    return int(digits)
