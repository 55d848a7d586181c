"""What this host sees of its peers' task ports: a TCP connection with the run's nonce, and a ping."""

from __future__ import annotations

import errno
import select
import socket
import struct
import threading
import time

from . import icmp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from .agent import Agent, Request

    Addresses = List[Tuple[int, Tuple[Any, ...]]]  # family and socket address

_RTT = 68  # of tcpi_rtt (microseconds) in struct tcp_info
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
_FOREIGN = "answered by something else"


def probe(_agent: Agent, request: Request) -> Dict[str, Any]:
    """Ask every target, all at once; runs in a child, whose threads may be left behind.

    First TCP, then pings: both together would be in each other's way.
    """
    nonce, timeout, targets = request["nonce"], float(request["timeout"]), request["targets"]
    deadline = time.monotonic() + timeout
    found = _resolve(targets, deadline)
    calls = [_Call(target, addresses, nonce) for target, addresses in zip(targets, found)]  # noqa: B905
    _make(calls, deadline, timeout)
    pings = icmp.ping((call.pinged for call in calls if call.pinged is not None), min(timeout, 3.0))
    return {"results": [call.result(pings) for call in calls]}


class _Call:
    """One target: its addresses in turn, until one is connected."""

    def __init__(self, target: Dict[str, Any], addresses: Addresses, nonce: str) -> None:
        self.socket: Optional[socket.socket] = None
        self.expires = 0.0
        self.pinged = (addresses[0][0], str(addresses[0][1][0])) if addresses else None
        self._host = target["host"]
        self._nonce = nonce
        self.left = list(addresses)
        self._ms: Optional[float] = None
        self._why = "" if addresses else "does not resolve"
        self._heard = b""
        self._began = 0.0

    def connect(self, timeout: float) -> None:
        """Begin with the next address; without one the last reason stands."""
        self.hang_up()
        while self.left and self.socket is None:
            family, address = self.left.pop(0)
            self._began = time.monotonic()
            self.expires = self._began + timeout
            self._why = "timed out"  # unless it goes on
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
                self.socket.setblocking(False)
                self.socket.connect(address)
            except BlockingIOError:
                pass
            except OSError as error:
                self._why = _reason(error)
                self.hang_up()

    def go_on(self) -> None:
        """The socket is ready; hangs up when there is no more to learn from it."""
        assert self.socket is not None
        try:
            if self._ms is None:
                self._connected(self.socket)
            else:
                self._hear(self.socket)
        except BlockingIOError:
            return
        except OSError as error:
            self._why = _reason(error) if self._ms is None else _FOREIGN
            self.hang_up()

    @property
    def connected(self) -> bool:
        return self._ms is not None

    def hang_up(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def result(self, pings: Dict[icmp.Address, icmp.Result]) -> Dict[str, Any]:
        answered, ms = pings.get(self.pinged, (None, None)) if self.pinged is not None else (None, None)
        return {
            "host": self._host,
            "tcp": not self._why,
            "tcp_ms": self._ms,
            "why": self._why,
            "icmp": answered,
            "icmp_ms": ms,
        }

    def _connected(self, peer: socket.socket) -> None:
        code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        self._ms = _round_trip(peer) or round((time.monotonic() - self._began) * 1000, 3)
        self._why = _FOREIGN  # until the right answer is here
        peer.send(self._nonce.encode() + b"\n")

    def _hear(self, peer: socket.socket) -> None:
        data = peer.recv(1024)
        self._heard += data
        if not data or b"\n" in self._heard or len(self._heard) >= 1024:
            self._why = _judge(self._heard, self._host, self._nonce)
            self.hang_up()


def _make(calls: List[_Call], deadline: float, timeout: float) -> None:
    """Serve all calls until each has ended or its time is over."""
    poll = select.poll()
    open_calls: Dict[int, _Call] = {}

    def begin(call: _Call) -> None:
        share = max(0.05, min(timeout, deadline - time.monotonic()) / max(1, len(call.left)))
        call.connect(share)
        if call.socket is not None:
            open_calls[call.socket.fileno()] = call
            poll.register(call.socket, select.POLLOUT)

    for call in calls:
        begin(call)
    while open_calls:
        patience = min(call.expires for call in open_calls.values()) - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(0, int(patience * 1000) + 1))}
        now = time.monotonic()
        for fd, call in list(open_calls.items()):
            if fd in ready:
                call.go_on()
            elif call.expires <= now:
                call.hang_up()
            if call.socket is not None:
                poll.modify(fd, select.POLLIN if call.connected else select.POLLOUT)
                continue
            poll.unregister(fd)
            del open_calls[fd]
            if not call.connected:
                begin(call)


def _resolve(targets: List[Dict[str, Any]], deadline: float) -> List[Addresses]:
    """The addresses of each target; a name server that does not answer holds up only its own name."""
    found: List[Addresses] = [[] for _ in targets]
    threads = []
    for number, target in enumerate(targets):
        try:
            found[number] = _look_up(target, socket.AI_NUMERICHOST)
        except OSError:
            thread = threading.Thread(target=_look_up_name, args=(target, found, number), daemon=True)
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(found)


def _look_up_name(target: Dict[str, Any], found: List[Addresses], number: int) -> None:
    try:
        found[number] = _look_up(target, 0)
    except (OSError, UnicodeError):
        pass  # it stays without an address


def _look_up(target: Dict[str, Any], flags: int) -> Addresses:
    entries = socket.getaddrinfo(target["address"], int(target["port"]), type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in entries]


def _round_trip(peer: socket.socket) -> Optional[float]:
    """The handshake in ms as the kernel measured it: our own work would be in the way of a clock."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT + 4)
        return float(struct.unpack_from("I", info, _RTT)[0] / 1000)
    except (OSError, struct.error):
        return None


def _judge(heard: bytes, host: str, nonce: str) -> str:
    """Empty when it is the peer that was meant."""
    said, _, name = heard.decode("utf-8", "replace").partition("\n")[0].partition(" ")
    if said != nonce:
        return _FOREIGN
    return "" if name in ("", host) else f"answered by {name}"


def _reason(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "refused"
    if error.errno == errno.ETIMEDOUT:
        return "timed out"
    if error.errno in _NO_ROUTE:
        return "no route"
    return error.strerror or str(error)
