"""Pings: over one socket where this user may have one, else by the `ping` program for each address."""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import subprocess
import threading
import time

from ..base.annotations import Iterable, TypeAlias

Address: TypeAlias = "tuple[int, str]"  # family and numeric address
Result: TypeAlias = "tuple[bool | None, float | None]"  # None: not measured; and milliseconds

_ICMPV6 = 58
_KINDS = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}  # echo request and reply
_TRIES = 3  # packets get lost
_SO_ATTACH_FILTER = 26


def ping(addresses: Iterable[Address], timeout: float) -> dict[Address, Result]:
    """Ask every address at once; return within `timeout` seconds, or a second more."""
    results: dict[Address, Result] = {}
    wanted = sorted(set(addresses))
    left: list[Address] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        here = [address for address in wanted if address[0] == family]
        sock = _open(family) if here else None
        if sock is None:
            left += here
        else:
            with sock:
                results.update(_Pinger(sock, here).run(timeout))
    results.update(_run_programs(left, timeout))
    return results


def _open(family: int) -> socket.socket | None:
    """A ping socket, or a raw one; None for a user who may have neither."""
    protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else _ICMPV6
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:
            continue
        if kind == socket.SOCK_RAW:
            _keep_own(sock, family)
        return sock
    return None


def _identity() -> int:
    return os.getpid() & 0xFFFF


def _keep_own(sock: socket.socket, family: int) -> None:
    """Let the kernel drop what answers others: a raw socket hears every ping of the machine."""
    start = [(0xB1, 0, 0, 0)] if family == socket.AF_INET else [(0x01, 0, 0, 0)]  # X = IP header's length
    program = [
        *start,
        (0x50, 0, 0, 0),  # A = type
        (0x15, 0, 3, _KINDS[socket.AddressFamily(family)][1]),  # no reply: drop
        (0x48, 0, 0, 4),  # A = identity
        (0x15, 0, 1, _identity()),
        (0x06, 0, 0, 0xFFFF),
        (0x06, 0, 0, 0),
    ]
    import array

    code = array.array("B", b"".join(struct.pack("HBBI", *step) for step in program))
    address = code.buffer_info()[0]
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), address))


class _Pinger:
    """One socket, many addresses; the sequence number says which."""

    def __init__(self, sock: socket.socket, addresses: list[Address]) -> None:
        self._sock = sock
        self._addresses = addresses
        self._token = os.urandom(8)
        self._sent: list[float] = [0.0] * len(addresses)
        self._results: dict[Address, Result] = {}

    def run(self, timeout: float) -> dict[Address, Result]:
        self._sock.setblocking(False)
        for attempt in range(_TRIES):
            if len(self._results) < len(self._addresses):
                self._send_all()
                self._hear(time.monotonic() + timeout * (1 if attempt + 1 == _TRIES else 0.5) / 2)
        return {address: self._results.get(address, (False, None)) for address in self._addresses}

    def _send_all(self) -> None:
        for number, address in enumerate(self._addresses):
            if address not in self._results:
                self._sent[number] = time.monotonic()
                try:
                    self._sock.sendto(self._request(number), (address[1], 0))
                except PermissionError:
                    self._results[address] = (None, None)  # a local firewall: nothing was measured
                except OSError:
                    pass  # no route now; the next try may find one
                self._hear(0.0)  # a full buffer would drop answers

    def _request(self, number: int) -> bytes:
        kind = _KINDS[self._sock.family][0]
        head = struct.pack(">BBHHH", kind, 0, 0, _identity(), number)
        total = _checksum(head + self._token)  # IPv6: the kernel's own
        return struct.pack(">BBHHH", kind, 0, total, _identity(), number) + self._token

    def _hear(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while len(self._results) < len(self._addresses):
            if not poll.poll(max(0, int((deadline - time.monotonic()) * 1000))):
                return
            try:
                self._take(self._sock.recv(2048), time.monotonic())
            except OSError:
                continue

    def _take(self, packet: bytes, now: float) -> None:
        if self._sock.family == socket.AF_INET and self._sock.type == socket.SOCK_RAW:
            packet = packet[(packet[0] & 15) * 4 :]
        if len(packet) < 16 or packet[0] != _KINDS[self._sock.family][1] or packet[8:16] != self._token:
            return
        number = struct.unpack_from(">H", packet, 6)[0]
        self._results.setdefault(self._addresses[number], (True, round((now - self._sent[number]) * 1000, 3)))


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _run_programs(addresses: list[Address], timeout: float) -> dict[Address, Result]:
    results: dict[Address, Result] = dict.fromkeys(addresses, (None, None))

    def ask(address: Address) -> None:
        results[address] = _run_program(address[1], timeout)

    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout + 1.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(results)


def _run_program(address: str, timeout: float) -> Result:
    argv = ["ping", "-n", "-q", "-c", "1", "-W", str(max(1, round(timeout))), address]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout + 1.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    return _read(done.returncode, done.stdout.decode("utf-8", "replace"))


def _read(status: int, text: str) -> Result:
    """None where nothing was measured: ping is not permitted, or does not know the family."""
    if status == 0:
        times = re.search(r"= *[\d.]+/([\d.]+)/", text)
        return True, float(times.group(1)) if times else None
    if status == 1 and "permi" not in text.lower():
        return False, None
    return (False, None) if "nreachable" in text else (None, None)
