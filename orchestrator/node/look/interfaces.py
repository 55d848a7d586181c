"""The network interfaces of this machine: which carries which address, and the way to elsewhere.

Asked of the kernel over netlink (rtnetlink(7)): a node need not have the `ip` program.
"""

from __future__ import annotations

import socket
import struct

from ..base import procs
from ..base.annotations import Iterator

_GETADDR, _DONE, _ERROR = 22, 3, 2
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ADDRESS, _LOCAL = 1, 2  # attributes: the peer's on a point-to-point link, and our own
_LENGTHS = {socket.AF_INET: 4, socket.AF_INET6: 16}
_SECONDS = 5.0


def addresses() -> list[dict[str, str]]:
    """`{"name": "eth0", "ip": "10.0.0.4"}` for every address; [] where the kernel does not say."""
    try:
        return [{"name": _name(index), "ip": ip} for index, ip in _dump()]
    except (OSError, struct.error):
        return []


def gateways() -> list[str]:
    """The IPv4 addresses through which this machine reaches other networks."""
    found = []
    for line in procs.text("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and int(fields[3], 16) & 2:  # RTF_GATEWAY
            found.append(socket.inet_ntoa(struct.pack("<I", int(fields[2], 16))))
    return sorted(set(found))


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return "?"


def _dump() -> Iterator[tuple[int, str]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(_SECONDS)
        body = struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0)
        kernel.send(struct.pack("=IHHII", 16 + len(body), _GETADDR, _DUMP, 1, 0) + body)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind in (_DONE, _ERROR) or length < 16:
                    return
                yield from _entry(data[16:length])
                data = data[_aligned(length) :]


def _entry(message: bytes) -> Iterator[tuple[int, str]]:
    family, _, _, _, index = struct.unpack_from("=BBBBI", message)
    found: dict[int, bytes] = {}
    at = 8
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        found[kind] = message[at + 4 : at + length]
        at += _aligned(length)
    raw = found.get(_LOCAL, found.get(_ADDRESS, b""))
    if len(raw) == _LENGTHS.get(family):
        yield index, socket.inet_ntop(family, raw)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
