"""Listening on the task ports for the peers' agents and connecting to theirs, as TensorFlow will do later.

Whoever sends the nonce receives it back with this host's name in a small packet, followed by a number of
bytes, so that lost large packets show. Without the nonce nothing is sent. Then the peer hangs up. It closes
first, so that TIME_WAIT stays on its side and not on the port that the task needs next. A target that does
not respond to a connection at all is pinged, with the program `ping` if it exists: that distinguishes a
closed port from a cut network.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

from ..base import descriptors, lenient, procs, program
from ..base.fault import reason
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..serve.loop import READ
from ..task import leases
from ..task.meeting import LISTEN, tables

_PEERS = 512  # connections at a time; more than that are not peers
_PATIENCE = 30.0  # seconds for one of them
_MOST = 1 << 16  # bytes of large packets: a kernel buffer takes them at once


class Mesh:
    """The listeners of one preflight and the peers that are connected to them."""

    def __init__(self, agent: Agent, nonce: str, host: str, large: int) -> None:
        self._loop = agent.loop
        self._question = f"{nonce}\n".encode()
        self._answer = f"{nonce} {host}\n".encode()
        self._payload = os.urandom(large)  # random, so that no VPN can compress it
        self._listeners: list[socket.socket] = []
        self._peers: dict[int, socket.socket] = {}

    def listen(self, port: int) -> int | None:
        """Listen on a port, 0 for any; return None if it is taken, or not permitted for this user."""
        try:
            listener = descriptors.listen(port, _PEERS)
        except OSError:
            return None
        listener.setblocking(False)
        self._listeners.append(listener)
        self._loop.watch(listener.fileno(), READ, lambda: self._accept(listener))
        return int(listener.getsockname()[1])

    def close(self) -> None:
        for listener in self._listeners:
            self._loop.unwatch(listener.fileno())
            listener.close()
        for peer in list(self._peers.values()):
            # Without TIME_WAIT on the port.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up(peer)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return  # it went away in the queue
        if len(self._peers) >= _PEERS:
            peer.close()
            return
        peer.setblocking(False)
        self._peers[peer.fileno()] = peer
        received = bytearray()
        self._loop.watch(peer.fileno(), READ, lambda: self._hear(peer, received))
        self._loop.after(_PATIENCE, lambda: self._hang_up(peer))

    def _hear(self, peer: socket.socket, received: bytearray) -> None:
        """Reply to the nonce; hang up on any other message of that length, and on a peer that has hung up."""
        try:
            data = peer.recv(len(self._question))
            received += data
            if data and received == self._question:
                self._send(peer)
            if data and (len(received) < len(self._question) or received == self._question):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._hang_up(peer)

    def _send(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.send(self._answer)  # in a separate packet, which gets through in any case
        if self._payload:
            peer.send(self._payload)

    def _hang_up(self, peer: socket.socket) -> None:
        if self._peers.pop(peer.fileno(), None) is not None:
            self._loop.unwatch(peer.fileno())
            peer.close()


def listen(agent: Agent, request: Request) -> Json:
    """Take every free port; return the holders of the others. A second call replaces the first.

    A port leased to another run is left alone: its task may be about to listen there.
    """
    unlisten(agent, request)
    large = min(int(request.get("large") or 0), _MOST)
    mesh = agent.rooms["mesh"] = Mesh(agent, request["nonce"], request.get("host", ""), large)
    run = request.get("run", "")
    free: list[int] = []
    busy: list[Json] = []
    for port in sorted({int(port) for port in request["ports"]}):
        if leases.leased(agent, port, run) is None and mesh.listen(port) is not None:
            free.append(port)
        else:
            busy.append({"port": port, "holder": leases.leased(agent, port, run) or _holder(port)})
    return {"listening": free, "busy": busy, "extra": mesh.listen(0) if request.get("extra") else None}


def unlisten(agent: Agent, _request: Request) -> Json:
    mesh = agent.rooms.pop("mesh", None)
    if mesh is not None:
        mesh.close()
    return {}


def _holder(port: int) -> str:
    rows = (row for row in tables(os.getpid()) if row.local[1] == f"{port:04X}" and row.inode != "0")
    sockets = sorted((row.state != LISTEN, row.inode, row.uid) for row in rows)
    if not sockets:
        return "a process that is gone by now, or in another network namespace"
    _, inode, uid = sockets[0]
    for process in procs.scan():
        if any(name == f"socket:[{inode}]" for _, name in procs.open_files(process.pid)):
            return f"{procs.name(process.pid)} pid {process.pid} (user {lenient.user(uid)})"
    return f"a process of user {lenient.user(uid)}"  # whose descriptors we cannot see


_RTT = 68  # of tcpi_rtt (microseconds) in struct tcp_info
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
_TIMED_OUT, _CUT, _UNRESOLVED = "timed out", "no route", "does not resolve"
_FOREIGN = "answered by something else"
_LINE = 1024
_PIECE = 1 << 16  # bytes; the kernel would have to map and clear a larger buffer each time
_LARGE_SECONDS = 3.0  # for the large packets of one pair; a kernel has retransmitted them four times by then
_PING_SECONDS = 2.0
_THREADS = 64


def probe(_agent: Agent, request: Request) -> Json:
    """Connect to every target, many at once; runs in a child, whose threads may be left behind."""
    from concurrent.futures import ThreadPoolExecutor, wait  # not in the loop, which also has to listen

    nonce, timeout, large = request["nonce"], float(request["timeout"]), int(request.get("large") or 0)
    targets = request["targets"]
    answers = [_silence(target) for target in targets]
    rounds = 1 + len(targets) // _THREADS
    pool = ThreadPoolExecutor(_THREADS)
    calls = [
        pool.submit(_call, target, answer, nonce, large, timeout)
        for target, answer in zip(targets, answers)  # noqa: B905
    ]
    wait(calls, (timeout + _LARGE_SECONDS) * rounds)
    silent = {answer["resolved"] for answer in answers if answer["why"] in (_TIMED_OUT, _CUT)}
    seconds = min(timeout, _PING_SECONDS)
    with ThreadPoolExecutor(_THREADS) as pool:  # a separate one: names may still be resolving in the other
        pings = dict(zip(silent, pool.map(lambda address: _ping(address, seconds), silent)))  # noqa: B905
    return {"results": [{**answer, "icmp": pings.get(answer["resolved"])} for answer in answers]}


def _silence(target: Json) -> Json:
    """Return the result for a target whose name was not even resolved."""
    unknown = dict.fromkeys(("tcp_ms", "large", "large_ms"))
    return {"host": target["host"], "tcp": False, "why": _UNRESOLVED, "resolved": "", **unknown}


def _call(target: Json, answer: Json, nonce: str, large: int, timeout: float) -> None:
    """Try the addresses of one target until one connects; then read the nonce and what follows.

    If only large packets are lost (an MTU too large for the path), a connection opens, replies, and then
    stalls. A name server that does not respond delays only its own name. If an earlier address has not
    answered, the result names it: PyTorch and JAX do not try another one.
    """
    deadline, silent = time.monotonic() + timeout, ""
    try:
        entries = socket.getaddrinfo(target["address"], int(target["port"]), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for place, (family, _, _, _, address) in enumerate(entries):
        share = (deadline - time.monotonic()) / (len(entries) - place)
        answer.update(resolved=str(address[0]), why=_TIMED_OUT)
        began = time.monotonic()
        with socket.socket(family, socket.SOCK_STREAM) as peer:
            peer.settimeout(max(0.05, share))
            try:
                peer.connect(address)
            except OSError as error:
                answer["why"] = _reason(error)
                silent = silent or (str(address[0]) if answer["why"] == _TIMED_OUT else "")
                continue
            answer.update(tcp_ms=_rtt(peer) or _since(began), why=_FOREIGN)
            peer.settimeout(max(0.05, deadline - time.monotonic()))
            try:
                _hear(peer, answer, nonce, large, timeout)
            except OSError:
                pass  # what is known by now remains valid
            answer["tcp"] = not answer["why"]
            if silent and answer["tcp"]:
                answer.update(resolved=silent, why=_TIMED_OUT)
            return


def _hear(peer: socket.socket, answer: Json, nonce: str, large: int, timeout: float) -> None:
    """Send the nonce; read the line that only a peer's agent sends, and the bytes after it. Raise OSError."""
    peer.sendall(f"{nonce}\n".encode())
    data = b""
    while b"\n" not in data and len(data) < _LINE:
        data += (piece := peer.recv(_PIECE))
        if not piece:
            break
    line, _, more = data.partition(b"\n")
    word, _, name = line.decode("utf-8", "replace").partition(" ")
    if word != nonce:
        return
    answer["why"] = "" if name in ("", answer["host"]) else f"answered by {name}"
    if answer["why"] or not large:
        return
    answer["large"] = False
    began, received = time.monotonic(), len(more)
    while received < large:
        peer.settimeout(max(0.001, began + min(timeout, _LARGE_SECONDS) - time.monotonic()))
        received += len(piece := peer.recv(_PIECE))
        if not piece:
            return
    answer.update(large=True, large_ms=_since(began))


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)


def _rtt(peer: socket.socket) -> float:
    """Return milliseconds as measured by the kernel, without our own work; 0 if unavailable."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT + 4)
        return float(struct.unpack_from("I", info, _RTT)[0] / 1000)
    except (OSError, struct.error):
        return 0.0


def _reason(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "refused"
    if error.errno == errno.ETIMEDOUT or isinstance(error, socket.timeout):
        return _TIMED_OUT
    return _CUT if error.errno in _NO_ROUTE else reason(error)


def _ping(address: str, seconds: float) -> bool | None:
    """Return whether an address answers a ping; None if that cannot be measured."""
    argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.3", "-W", str(max(1, round(seconds))), address]
    try:
        output = program.listen(list(map(os.fsencode, argv)), {**os.environb, b"LC_ALL": b"C"}, seconds + 1.0)
    except OSError:
        return None
    # A ping without the required permission, or with other options, also ends with 1.
    measured = output.status == 0 or (output.status == 1 and b"transmitted" in output.out)
    return output.status == 0 if measured else None
