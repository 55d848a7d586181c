"""One connection to a peer's task port: whether it opens, who answers, whether large packets get through."""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
import time

from ..base.annotations import Any, TypeAlias
from ..base.fault import reason

Addresses: TypeAlias = "list[tuple[int, tuple[Any, ...]]]"  # family and socket address

_MTU, _RTT = 60, 68  # of tcpi_pmtu (bytes) and tcpi_rtt (microseconds) in struct tcp_info
_SIOCOUTQ = 0x5411  # bytes that the peer's kernel has not acknowledged
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
_FOREIGN = "answered by something else"
_LINE = 1024
_PIECE = 1 << 16  # bytes; the kernel would have to map and clear a larger buffer anew each time


class Call:
    """One target: its addresses in turn, until one is connected; then the question and what it brings.

    With `large` bytes as many go each way after the answer. What is lost in large packets alone (an MTU that
    is too big for the way) shows as a connection that opens, answers, and then stands still.
    """

    def __init__(
        self,
        target: dict[str, Any],
        addresses: Addresses,
        nonce: str,
        large: bytes,
        patience: float,
    ) -> None:
        self.socket: socket.socket | None = None
        self.expires = 0.0
        self.pinged = (addresses[0][0], str(addresses[0][1][0])) if addresses else None
        self.left = list(addresses)
        self._host = target["host"]
        self._nonce = nonce
        self._large = large
        self._patience = patience
        self._ms: float | None = None
        self._why = "" if addresses else "does not resolve"
        self._resolved = str(addresses[0][1][0]) if addresses else ""
        self._heard = b""
        self._began = 0.0
        self._answered = False
        self._unsaid = b""
        self._received = 0
        self._packet: int | None = None
        self._out: bool | None = None
        self._back: bool | None = None
        self._large_ms: float | None = None

    def connect(self, timeout: float) -> None:
        """Begin with the next address; without one the last reason stands."""
        self.hang_up()
        while self.left and self.socket is None:
            family, address = self.left.pop(0)
            self._began = time.monotonic()
            self.expires = self._began + timeout
            self._resolved = str(address[0])
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

    @property
    def connected(self) -> bool:
        return self._ms is not None

    @property
    def awaits(self) -> int:
        """What it waits for, as `poll` says it."""
        if not self.connected:
            return select.POLLOUT
        return select.POLLIN | select.POLLOUT if self._unsaid else select.POLLIN

    @property
    def settles(self) -> bool:
        """Whether all is said and heard, and only an acknowledgement is missing, which wakes nobody."""
        return self._answered and not self._unsaid and self._back is True

    def go_on(self) -> None:
        """The socket is ready; hangs up when there is no more to learn from it."""
        assert self.socket is not None
        try:
            if self._ms is None:
                self._connected(self.socket)
            else:
                if self._unsaid:
                    self._say(self.socket)
                self._hear(self.socket)
        except BlockingIOError:
            return
        except OSError as error:
            if not self._answered:
                self._why = _reason(error) if self._ms is None else _FOREIGN
            self.hang_up()

    def look(self) -> None:
        """Time has passed: whether all has arrived by now."""
        if self._answered and self.socket is not None:
            self._settle(self.socket)

    def expire(self) -> None:
        """Its time is over."""
        self.look()
        self.hang_up()

    def hang_up(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def result(self, pings: dict[tuple[int, str], tuple[bool | None, float | None]]) -> dict[str, Any]:
        answered, ms = pings.get(self.pinged, (None, None)) if self.pinged is not None else (None, None)
        return {
            "host": self._host,
            "tcp": not self._why,
            "tcp_ms": self._ms,
            "why": self._why,
            "icmp": answered,
            "icmp_ms": ms,
            "resolved": self._resolved,
            "large_out": self._out,
            "large_back": self._back,
            "large_ms": self._large_ms,
            "packet": self._packet,
        }

    def _connected(self, peer: socket.socket) -> None:
        code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        micros = _info(peer, _RTT)
        self._ms = micros / 1000 if micros else round((time.monotonic() - self._began) * 1000, 3)
        if not self._nonce:
            self._why = ""
            self.hang_up()
            return
        self._why = _FOREIGN  # until the right answer is here
        wish = f" {len(self._large)}" if self._large else ""
        peer.send(f"{self._nonce}{wish}\n".encode())

    def _say(self, peer: socket.socket) -> None:
        try:
            self._unsaid = self._unsaid[peer.send(self._unsaid) :]
        except BlockingIOError:
            pass  # nothing gets out: what comes in is to be heard all the same

    def _hear(self, peer: socket.socket) -> None:
        data = peer.recv(_PIECE)
        if self._answered:
            self._received += len(data)
            if data:
                self._settle(peer)
            else:
                self.hang_up()
            return
        self._heard += data
        if not data or b"\n" in self._heard or len(self._heard) >= _LINE:
            line, _, more = self._heard.partition(b"\n")
            self._why = _judge(line, self._host, self._nonce)
            if self._why or not self._large or not data:
                self.hang_up()
                return
            self._answered = True
            self._out = self._back = False  # until it is known better
            self._received = len(more)
            self._unsaid = self._large
            self._packet = _info(peer, _MTU)
            self._began = time.monotonic()
            self.expires = self._began + self._patience
            self._say(peer)
            self._settle(peer)

    def _settle(self, peer: socket.socket) -> None:
        """Note which way is through; both are: done."""
        if not self._back and self._received >= len(self._large):
            self._back = True
            self._large_ms = round((time.monotonic() - self._began) * 1000, 3)
        self._out = not self._unsaid and unacknowledged(peer) == 0
        if self._back and self._out:
            self.hang_up()


def _info(peer: socket.socket, offset: int) -> int | None:
    """A field of struct tcp_info: what the kernel measured, without our own work in its way."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 4)
        return int(struct.unpack_from("I", info, offset)[0])
    except (OSError, struct.error):
        return None


def unacknowledged(peer: socket.socket) -> int:
    """The bytes that were sent and not confirmed so far."""
    return int(struct.unpack("i", fcntl.ioctl(peer.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0])


def _judge(line: bytes, host: str, nonce: str) -> str:
    """Empty when it is the peer that was meant."""
    said, _, name = line.decode("utf-8", "replace").partition(" ")
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
    return reason(error)
