"""Connect from here to the task ports of the peers, which answer with the run's nonce and large packets.

Whatever does not answer a connection at all is pinged, by the program `ping` where there is one: that tells
a closed port from a cut network.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import threading
import time
from typing import Any, Iterable, List, Tuple

from ..base.fault import reason
from ..serve.agent import Agent, Request

Addresses = List[Tuple[int, Tuple[Any, ...]]]  # family and socket address

_MTU, _RTT = 60, 68  # of tcpi_pmtu (bytes) and tcpi_rtt (microseconds) in struct tcp_info
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
_TIMED_OUT, _CUT = "timed out", "no route"
_FOREIGN = "answered by something else"
_LINE = 1024
_PIECE = 1 << 16  # bytes; the kernel would have to map and clear a larger buffer anew each time
_MOST = 1 << 20
_LARGE_SECONDS = 3.0  # for the large packets of one pair; a kernel has sent them again four times by then
_PING_SECONDS = 2.0


def probe(_agent: Agent, request: Request) -> dict[str, Any]:
    """Ask every target, all at once; runs in a child, whose threads may be left behind."""
    nonce, timeout, targets = request["nonce"], float(request["timeout"]), request["targets"]
    large = min(int(request.get("large") or 0), _MOST)
    deadline = time.monotonic() + timeout
    calls = [
        _Call(target, addresses, nonce, large, min(timeout, _LARGE_SECONDS))
        for target, addresses in zip(targets, _resolve(targets, deadline))  # noqa: B905
    ]
    _make(calls, deadline, timeout)
    silent = {call.resolved for call in calls if call.why in (_TIMED_OUT, _CUT)}
    pings = ping(silent, min(timeout, _PING_SECONDS)) if nonce else {}
    return {"results": [call.result(pings.get(call.resolved)) for call in calls]}


class _Call:
    """Try the addresses of one target in turn until one is connected; then hear the nonce and what follows.

    What is lost in large packets alone (an MTU that is too big for the way) shows as a connection that opens,
    answers, and then stands still.
    """

    def __init__(
        self, target: dict[str, Any], addresses: Addresses, nonce: str, large: int, patience: float
    ) -> None:
        self.socket: socket.socket | None = None
        self.expires = 0.0
        self.addresses = list(addresses)
        self.why = "" if addresses else "does not resolve"
        self.resolved = str(addresses[0][1][0]) if addresses else ""
        self._host = target["host"]
        self._nonce = nonce
        self._large = large
        self._patience = patience
        self._began = 0.0
        self._ms: float | None = None
        self._line: bytes | None = b""  # of the answer; None: the answer is complete
        self._received = 0
        self._large_ms: float | None = None
        self._packet: int | None = None

    def connect(self, timeout: float) -> None:
        """Begin with the next address; without one the last reason stands."""
        while self.addresses and self.socket is None:
            family, address = self.addresses.pop(0)
            self._began = time.monotonic()
            self.expires = self._began + timeout
            self.resolved = str(address[0])
            self.why = _TIMED_OUT  # unless it goes on
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
                self.socket.setblocking(False)
                self.socket.connect(address)
            except BlockingIOError:
                pass
            except OSError as error:
                self.why = _reason(error)
                self.hang_up()

    @property
    def connected(self) -> bool:
        return self._ms is not None

    @property
    def awaits(self) -> int:
        """The event for `poll`."""
        return select.POLLIN if self.connected else select.POLLOUT

    def go_on(self) -> None:
        """Use the socket, which is ready; hang up when there is no more to learn from it."""
        assert self.socket is not None
        try:
            if self._ms is None:
                self._connected(self.socket)
            else:
                self._hear(self.socket, self.socket.recv(_PIECE))
        except BlockingIOError:
            return
        except OSError as error:
            if self._line is not None:
                self.why = _reason(error) if self._ms is None else _FOREIGN
            self.hang_up()

    def hang_up(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def result(self, pinged: bool | None) -> dict[str, Any]:
        tried_large = self._line is None and self._large > 0
        return {
            "host": self._host,
            "tcp": self._ms is not None and not self.why,
            "tcp_ms": self._ms,
            "why": self.why,
            "icmp": pinged,
            "resolved": self.resolved,
            "large": self._large_ms is not None if tried_large else None,
            "large_ms": self._large_ms,
            "packet": self._packet,
        }

    def _connected(self, peer: socket.socket) -> None:
        code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        micros = _info(peer, _RTT)
        self._ms = micros / 1000 if micros else round((time.monotonic() - self._began) * 1000, 3)
        self.why = _FOREIGN if self._nonce else ""  # until the right answer is here
        if not self._nonce:
            self.hang_up()

    def _hear(self, peer: socket.socket, data: bytes) -> None:
        if self._line is None:
            self._received += len(data)
        else:
            self._line += data
            line, end, more = self._line.partition(b"\n")
            if data and not end and len(line) < _LINE:
                return
            self.why = _judge(line, self._host, self._nonce)
            if self.why:
                self.hang_up()
                return
            self._line, self._received = None, len(more)
            self._packet = _info(peer, _MTU)
            self._began = time.monotonic()
            self.expires = self._began + self._patience
        if self._received >= self._large > 0:
            self._large_ms = round((time.monotonic() - self._began) * 1000, 3)
        if not data or self._received >= self._large:
            self.hang_up()


def _make(calls: list[_Call], deadline: float, timeout: float) -> None:
    """Serve all calls until each has ended or its time is over."""
    poll = select.poll()
    running: dict[int, _Call] = {}

    def begin(call: _Call) -> None:
        call.connect(max(0.05, min(timeout, deadline - time.monotonic()) / max(1, len(call.addresses))))
        if call.socket is not None:
            running[call.socket.fileno()] = call
            poll.register(call.socket, call.awaits)

    for call in calls:
        begin(call)
    while running:
        patience = min(call.expires for call in running.values()) - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(0, int(patience * 1000) + 1))}
        now = time.monotonic()
        late = {fd for fd, call in running.items() if call.expires <= now}
        # As a list: a number that is free again may belong to the next call already.
        for fd, call in [(fd, running[fd]) for fd in ready | late]:
            if fd in ready:
                call.go_on()
            else:
                call.hang_up()
            if call.socket is not None:
                poll.modify(fd, call.awaits)
                continue
            poll.unregister(fd)
            del running[fd]
            if not call.connected:
                begin(call)


def _info(peer: socket.socket, offset: int) -> int | None:
    """A field of struct tcp_info: what the kernel measured, without our own work in its way."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 4)
        return int(struct.unpack_from("I", info, offset)[0])
    except (OSError, struct.error):
        return None


def _judge(line: bytes, host: str, nonce: str) -> str:
    """Return "" for the peer that was meant, else who answered."""
    word, _, name = line.decode("utf-8", "replace").partition(" ")
    if word != nonce:
        return _FOREIGN
    return "" if name in ("", host) else f"answered by {name}"


def _reason(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "refused"
    if error.errno == errno.ETIMEDOUT:
        return _TIMED_OUT
    return _CUT if error.errno in _NO_ROUTE else reason(error)


def ping(addresses: Iterable[str], seconds: float) -> dict[str, bool]:
    """Say of each address whether it answers a ping; nothing of those where that cannot be measured."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    env = {**os.environ, "LC_ALL": "C"}
    answers: dict[str, bool] = {}
    for address in addresses:
        argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.3", "-W", str(max(1, round(seconds))), address]
        try:
            running[address] = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError:
            break  # there is no such program
    deadline = time.monotonic() + seconds + 1.0
    for address, process in running.items():
        try:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()  # and not for its pipe, which a child of its own may hold
            continue
        # A ping without the right to do so, or of other options, ends with 1, too.
        if process.returncode == 0 or (process.returncode == 1 and b"transmitted" in output):
            answers[address] = process.returncode == 0
    return answers


def _resolve(targets: list[dict[str, Any]], deadline: float) -> list[Addresses]:
    """Return the addresses of each target; a name server that does not answer holds up only its own name."""
    resolved: list[Addresses] = [[] for _ in targets]

    def look_up(number: int, flags: int = 0) -> None:
        address, port = targets[number]["address"], int(targets[number]["port"])
        entries = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)
        resolved[number] = [(family, place) for family, _, _, _, place in entries]

    def look_up_name(number: int) -> None:
        try:
            look_up(number)
        except (OSError, UnicodeError):
            pass  # it stays without an address

    threads = []
    for number in range(len(targets)):
        try:
            look_up(number, socket.AI_NUMERICHOST)
        except OSError:
            threads.append(threading.Thread(target=look_up_name, args=(number,), daemon=True))
            threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(resolved)
