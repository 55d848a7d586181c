"""Listening on the task ports for the peers' agents, so that they can measure what TensorFlow will meet.

    NONCE            is answered with the nonce and this host's name
    NONCE BYTES      ... and so many bytes: what is lost in large packets only shows then

Then the peer hangs up. It closes first, so that TIME_WAIT stays on its side and not on the port that the
task needs next.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any

from ..base import lenient, procs, tcp, turnstile
from ..base.fault import NodeError, reason
from ..base.paths import Paths
from ..serve.agent import Agent, Request
from ..serve.loop import READ, WRITE
from ..task import leases
from ..task.leases import leased

_PEERS = 512  # connections at a time; more than that are no peers
_PATIENCE = 30.0  # seconds for one of them
_MOST = 1 << 20  # bytes of large packets
_QUESTION = 200  # bytes


class Mesh:
    """The listeners of one preflight and the peers that are talking to them."""

    def __init__(self, agent: Agent, nonce: str, host: str) -> None:
        self.agent = agent
        self.nonce = nonce.encode()
        self.answer = f"{nonce} {host}\n".encode()
        self.open: dict[int, _Peer] = {}
        self._listeners: list[socket.socket] = []
        self._turns: list[int] = []
        self._payload = b""

    def listen(self, port: int) -> bool:
        """False when somebody has the port; raise `turnstile.Taken` when another preflight looks at it."""
        turn = turnstile.pass_through(turnstile.LOOK, port)
        try:
            listener = tcp.listen(port, _PEERS)
        except OSError as error:
            os.close(turn)
            if error.errno == errno.EADDRINUSE:
                return False
            raise NodeError("port", f"cannot listen on port {port}", reason(error)) from None
        self._turns.append(turn)
        self._serve(listener)
        return True

    def listen_anywhere(self) -> int:
        """A port that the kernel chooses, as NCCL and others take theirs."""
        listener = tcp.listen(0, _PEERS)
        self._serve(listener)
        return int(listener.getsockname()[1])

    def payload(self, size: int) -> bytes:
        """Bytes that no VPN on the way can compress, made once for all peers."""
        if len(self._payload) < size:
            self._payload = os.urandom(size)
        return self._payload[:size]

    def close(self) -> None:
        for listener in self._listeners:
            self.agent.loop.unwatch(listener.fileno())
            listener.close()
        for peer in list(self.open.values()):
            peer.reset()
        while self._turns:
            os.close(self._turns.pop())

    def _serve(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self.agent.loop.watch(listener.fileno(), READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return  # it went away in the queue
        if len(self.open) >= _PEERS:
            peer.close()
            return
        peer.setblocking(False)
        self.open[peer.fileno()] = _Peer(self, peer)


class _Peer:
    """One connection: its question, and the answer."""

    def __init__(self, mesh: Mesh, peer: socket.socket) -> None:
        self._mesh = mesh
        self._loop = mesh.agent.loop
        self._socket = peer
        self._question = b""
        self._unsent = b""
        self._loop.watch(peer.fileno(), READ, self._go_on)
        self._timer = self._loop.after(_PATIENCE, self.hang_up)

    def reset(self) -> None:
        """Hang up without TIME_WAIT on the port."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.hang_up()

    def hang_up(self) -> None:
        self._timer.cancel()
        if self._socket.fileno() >= 0 and self._mesh.open.pop(self._socket.fileno(), None) is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _go_on(self) -> None:
        try:
            self._send()
            data = self._socket.recv(_QUESTION)
            if data and b"\n" not in self._question:
                self._question += data
                self._answer()
            elif not data:
                self.hang_up()
        except BlockingIOError:
            return
        except OSError:
            self.hang_up()

    def _answer(self) -> None:
        question, end, _ = self._question.partition(b"\n")
        nonce, _, size = question.partition(b" ")
        if not end and self._mesh.nonce.startswith(nonce) and len(self._question) < _QUESTION:
            return  # there is more to come
        if not end or nonce != self._mesh.nonce or not (size == b"" or size.isdigit()):
            self.hang_up()
            return
        self._unsent = self._mesh.payload(min(int(size or 0), _MOST))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.send(self._mesh.answer)  # in a small packet of its own, which gets through anyway
        self._send()

    def _send(self) -> None:
        if self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass
            self._loop.watch(self._socket.fileno(), READ | WRITE if self._unsent else READ, self._go_on)


def listen(agent: Agent, request: Request) -> dict[str, Any]:
    """Take every free port; say who has the others, and who is in our way. A second call replaces the first.

    A port that is leased to another run is left alone: its task may be about to listen there. Where another
    preflight looks at one of the ports, none is taken (`waits_for` says whose it is): both would find the
    other one in the place of their peers.
    """
    unlisten(agent, request)
    mesh = agent.rooms["mesh"] = Mesh(agent, request["nonce"], request.get("host", ""))
    paths = agent.paths if agent.state_error is None else None
    run = request.get("run", "")
    free: list[int] = []
    busy: list[dict[str, Any]] = []
    for port in sorted({int(port) for port in request["ports"]}):
        try:
            if leased(port, paths, run) is None and mesh.listen(port):
                free.append(port)
            else:
                busy.append({"port": port, "holder": holder(port, paths, run)})
        except turnstile.Taken as taken:
            unlisten(agent, request)
            return {"listening": [], "busy": [], "extra": None, "waits_for": taken.user}
    extra = mesh.listen_anywhere() if request.get("extra") else None
    return {"listening": free, "busy": busy, "extra": extra, "waits_for": None}


def unlisten(agent: Agent, _request: Request) -> dict[str, Any]:
    mesh = agent.rooms.pop("mesh", None)
    if mesh is not None:
        mesh.close()
    return {}


_LISTEN = "0A"


def holder(port: int, paths: Paths | None, asker: str = "") -> Any:
    """Name the holder of a port: by the lease of another run than `asker`, else as /proc tells."""
    other = leases.leased(port, paths, asker)
    if other is not None:
        return other
    sockets = _sockets(port)
    if not sockets:
        return "a process that is gone by now, or in another network namespace"
    inode, uid = sockets[0]
    process = _owner_of(inode)
    if process is None:
        return f"a process of user {lenient.user(uid)}"
    pid, name = process
    return f"{name} pid {pid} (user {lenient.user(uid)})"


def _sockets(port: int) -> list[tuple[str, int]]:
    """(inode, uid) of the sockets on a local port, listeners first."""
    sockets = [(state != _LISTEN, inode, uid) for state, inode, uid in _table(port) if inode != "0"]
    return [(inode, uid) for _, inode, uid in sorted(sockets)]


def _table(port: int) -> list[tuple[str, str, int]]:
    """(state, inode, uid) of what the kernel has on a local port."""
    ending = f":{port:04X}"
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(ending):
                rows.append((fields[3], fields[9], int(fields[7])))
    return rows


def _owner_of(inode: str) -> tuple[int, str] | None:
    """The process with that socket; None when it is another user's, whose descriptors we cannot see."""
    link = f"socket:[{inode}]"
    for process in procs.scan():
        if any(name == link for _, name in procs.open_files(process.pid)):
            return process.pid, procs.name(process.pid)
    return None
