"""The addresses of this machine, and their interfaces."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from typing import Optional

from . import procs

_SIOCGIFCONF = 0x8912
# Bytes of a struct ifreq: a name, and a union whose largest is ifmap.
_ENTRY = 16 + struct.calcsize("LLHBBB0L")
_ROOM = 4096 * _ENTRY


def addresses() -> dict[str, str]:
    """Return every address of this machine, including loopback, with its interface."""
    interfaces = {}
    room = array.array("B", bytes(_ROOM))
    question = struct.pack("iL", _ROOM, room.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        (used,) = struct.unpack_from("i", fcntl.ioctl(any_socket, _SIOCGIFCONF, question))
    for at in range(0, used, _ENTRY):
        label = os.fsdecode(room[at : at + 16].tobytes().split(b"\0", 1)[0])  # eth0:1 is an alias
        interfaces[socket.inet_ntoa(room[at + 20 : at + 24].tobytes())] = label.split(":")[0]
    for line in procs.text("/proc/net/if_inet6").splitlines():
        digits, *_, name = line.split()
        interfaces[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))] = name
    return interfaces


def carrier(address: str) -> Optional[str]:
    """Return the interface of an address, given as a number or a name; None if there is none."""
    own = addresses()
    try:
        numbers = [str(info[4][0]) for info in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return None
    loopback = "lo" if any(number.startswith("127.") for number in numbers) else None  # all of 127.0.0.0/8
    return next((own[number] for number in numbers if number in own), loopback)
