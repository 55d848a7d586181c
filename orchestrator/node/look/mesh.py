"""Listen on the task ports for the peers' agents and connect to theirs: what TensorFlow will meet, measured.

Whoever says the nonce gets it back with this host's name, in a small packet, and so many bytes behind it:
what is lost in large packets only shows then. Without the nonce nothing is said. Then the peer hangs up. It
closes first, so that TIME_WAIT stays on its side and not on the port that the task needs next.
Whatever does not answer a connection at all is pinged, by the program `ping` where there is one: that tells
a closed port from a cut network.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import Any

from ..base import descriptors, lenient, procs, program
from ..base.fault import reason
from ..serve.agent import Agent, Request
from ..serve.loop import READ
from ..task import leases

_PEERS = 512  # connections at a time; more than that are no peers
_PATIENCE = 30.0  # seconds for one of them
_MOST = 1 << 16  # bytes of large packets: a buffer of the kernel takes them at once
_LISTEN = "0A"


class Mesh:
    """The listeners of one preflight and the peers that are connected to them."""

    def __init__(self, agent: Agent, nonce: str, host: str, large: int) -> None:
        self._loop = agent.loop
        self._question = f"{nonce}\n".encode()
        self._answer = f"{nonce} {host}\n".encode()
        self._payload = os.urandom(large)  # no VPN on the way can compress it
        self._listeners: list[socket.socket] = []
        self._peers: dict[int, socket.socket] = {}

    def listen(self, port: int) -> int | None:
        """Listen on a port, with 0 on one that the kernel chooses, as NCCL and others take theirs.

        Return None when somebody has it, or this user may not have it.
        """
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
        heard = bytearray()
        self._loop.watch(peer.fileno(), READ, lambda: self._hear(peer, heard))
        self._loop.after(_PATIENCE, lambda: self._hang_up(peer))

    def _hear(self, peer: socket.socket, heard: bytearray) -> None:
        """Answer the question; hang up on any other when it is as long, and on who has hung up."""
        try:
            data = peer.recv(len(self._question))
            heard += data
            if data and heard == self._question:
                self._send(peer)
            if data and (len(heard) < len(self._question) or heard == self._question):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._hang_up(peer)

    def _send(self, peer: socket.socket) -> None:
        """Send all of the answer, which the kernel's buffer holds."""
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.send(self._answer)  # in a packet of its own, which gets through anyway
        if self._payload:
            peer.send(self._payload)

    def _hang_up(self, peer: socket.socket) -> None:
        if self._peers.pop(peer.fileno(), None) is not None:
            self._loop.unwatch(peer.fileno())
            peer.close()


def listen(agent: Agent, request: Request) -> dict[str, Any]:
    """Take every free port; say who has the others. A second call replaces the first.

    A port that is leased to another run is left alone: its task may be about to listen there.
    """
    unlisten(agent, request)
    large = min(int(request.get("large") or 0), _MOST)
    mesh = agent.rooms["mesh"] = Mesh(agent, request["nonce"], request.get("host", ""), large)
    run = request.get("run", "")
    free: list[int] = []
    busy: list[dict[str, Any]] = []
    for port in sorted({int(port) for port in request["ports"]}):
        if leases.leased(agent, port, run) is None and mesh.listen(port) is not None:
            free.append(port)
        else:
            busy.append({"port": port, "holder": leases.leased(agent, port, run) or _holder(port)})
    return {"listening": free, "busy": busy, "extra": mesh.listen(0) if request.get("extra") else None}


def unlisten(agent: Agent, _request: Request) -> dict[str, Any]:
    mesh = agent.rooms.pop("mesh", None)
    if mesh is not None:
        mesh.close()
    return {}


def _holder(port: int) -> str:
    """Name the holder of a port, as /proc tells."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in procs.text(table).splitlines()[1:]
    ]
    sockets = sorted(
        (row[3] != _LISTEN, row[9], int(row[7]))
        for row in rows
        if row[1].endswith(f":{port:04X}") and row[9] != "0"
    )
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
_PIECE = 1 << 16  # bytes; the kernel would have to map and clear a larger buffer anew each time
_LARGE_SECONDS = 3.0  # for the large packets of one pair; a kernel has sent them again four times by then
_PING_SECONDS = 2.0
_THREADS = 64


def probe(_agent: Agent, request: Request) -> dict[str, Any]:
    """Ask every target, many at once; runs in a child, whose threads may be left behind."""
    from concurrent.futures import ThreadPoolExecutor, wait  # not in the loop, which listens alone

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
    with ThreadPoolExecutor(_THREADS) as pool:  # of its own: in the other one names may still be looked up
        pings = dict(zip(silent, pool.map(lambda address: _ping(address, seconds), silent)))  # noqa: B905
    return {"results": [{**answer, "icmp": pings.get(answer["resolved"])} for answer in answers]}


def _silence(target: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a target whose name was not even resolved."""
    unknown = dict.fromkeys(("tcp_ms", "large", "large_ms"))
    return {"host": target["host"], "tcp": False, "why": _UNRESOLVED, "resolved": "", **unknown}


def _call(target: dict[str, Any], answer: dict[str, Any], nonce: str, large: int, timeout: float) -> None:
    """Try the addresses of one target in turn until one is connected; then hear the nonce and what follows.

    What is lost in large packets alone (an MTU that is too big for the way) shows as a connection that opens,
    answers, and then stands still. A name server that does not answer holds up only its own name.
    """
    deadline = time.monotonic() + timeout
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
                continue
            answer.update(tcp_ms=_rtt(peer) or _since(began), why=_FOREIGN)
            peer.settimeout(max(0.05, deadline - time.monotonic()))
            try:
                _hear(peer, answer, nonce, large, timeout)
            except OSError:
                pass  # what is known by now stands
            answer["tcp"] = not answer["why"]
            return


def _hear(peer: socket.socket, answer: dict[str, Any], nonce: str, large: int, timeout: float) -> None:
    """Say the nonce; read the line that only a peer's agent has, and the bytes behind it. Raise OSError."""
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
    """Milliseconds as the kernel measured them, without our own work in their way; 0 where it tells none."""
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
    """Tell whether an address answers a ping; None where that cannot be measured."""
    argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.3", "-W", str(max(1, round(seconds))), address]
    try:
        said = program.listen(list(map(os.fsencode, argv)), {**os.environb, b"LC_ALL": b"C"}, seconds + 1.0)
    except OSError:
        return None
    # A ping without the right to do so, or of other options, ends with 1, too.
    measured = said.status == 0 or (said.status == 1 and b"transmitted" in said.out)
    return said.status == 0 if measured else None
