"""Listening on the task ports for the peers' agents, so that they can measure what TensorFlow will meet.

Whoever connects gets the nonce and this host's name, in a small packet, and so many bytes behind it: what is
lost in large packets only shows then. Then the peer hangs up. It closes first, so that TIME_WAIT stays on its
side and not on the port that the task needs next.
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

_PEERS = 512  # connections at a time; more than that are no peers
_PATIENCE = 30.0  # seconds for one of them
_MOST = 1 << 20  # bytes of large packets
_LISTEN = "0A"


class Mesh:
    """The listeners of one preflight and the peers that are connected to them."""

    def __init__(self, agent: Agent, line: str, large: int) -> None:
        self.loop = agent.loop
        self.line = line.encode()
        self.payload = os.urandom(large)  # no VPN on the way can compress it
        self.open: dict[int, _Peer] = {}
        self._listeners: list[socket.socket] = []
        self._turns: list[int] = []

    def listen(self, port: int) -> bool:
        """False when somebody has the port; raise `turnstile.Taken` when another preflight looks at it."""
        turn = turnstile.pass_through(turnstile.LOOK, port)
        try:
            self._serve(tcp.listen(port, _PEERS))
        except OSError as error:
            os.close(turn)
            if error.errno == errno.EADDRINUSE:
                return False
            raise NodeError("port", f"cannot listen on port {port}", reason(error)) from None
        self._turns.append(turn)
        return True

    def listen_anywhere(self) -> int:
        """Listen on a port that the kernel chooses, as NCCL and others take theirs."""
        listener = tcp.listen(0, _PEERS)
        self._serve(listener)
        return int(listener.getsockname()[1])

    def close(self) -> None:
        for listener in self._listeners:
            self.loop.unwatch(listener.fileno())
            listener.close()
        for peer in list(self.open.values()):
            peer.reset()
        while self._turns:
            os.close(self._turns.pop())

    def _serve(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self.loop.watch(listener.fileno(), READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # it went away in the queue
        if len(self.open) >= _PEERS:
            connection.close()
            return
        connection.setblocking(False)
        peer = self.open[connection.fileno()] = _Peer(self, connection)
        peer.greet()


class _Peer:
    """One connection, until the other side hangs up."""

    def __init__(self, mesh: Mesh, connection: socket.socket) -> None:
        self._mesh = mesh
        self._socket = connection
        self._unsent = mesh.payload
        self._timer = mesh.loop.after(_PATIENCE, self.hang_up)

    def greet(self) -> None:
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.send(self._mesh.line)  # in a packet of its own, which gets through anyway
        except OSError:
            self.hang_up()
            return
        self._go_on()

    def reset(self) -> None:
        """Hang up without TIME_WAIT on the port."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.hang_up()

    def hang_up(self) -> None:
        self._timer.cancel()
        if self._socket.fileno() >= 0 and self._mesh.open.pop(self._socket.fileno(), None) is not None:
            self._mesh.loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _go_on(self) -> None:
        """Send what fits; hang up when the other side has."""
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            elif not self._socket.recv(200):
                self.hang_up()
                return
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up()
            return
        self._mesh.loop.watch(self._socket.fileno(), WRITE if self._unsent else READ, self._go_on)


def listen(agent: Agent, request: Request) -> dict[str, Any]:
    """Take every free port; say who has the others. A second call replaces the first.

    A port that is leased to another run is left alone: its task may be about to listen there. One at which
    another preflight looks `passes`: it will be free in a moment.
    """
    unlisten(agent, request)
    line = f"{request['nonce']} {request.get('host', '')}\n"
    mesh = agent.rooms["mesh"] = Mesh(agent, line, min(int(request.get("large") or 0), _MOST))
    paths = agent.paths if agent.state_error is None else None
    run = request.get("run", "")
    free: list[int] = []
    busy: list[dict[str, Any]] = []
    for port in sorted({int(port) for port in request["ports"]}):
        try:
            if leases.leased(port, paths, run) is None and mesh.listen(port):
                free.append(port)
            else:
                busy.append({"port": port, "holder": holder(port, paths, run)})
        except turnstile.Taken as taken:
            busy.append({"port": port, "holder": f"a preflight of {taken.user}", "passes": True})
    return {
        "listening": free,
        "busy": busy,
        "extra": mesh.listen_anywhere() if request.get("extra") else None,
    }


def unlisten(agent: Agent, _request: Request) -> dict[str, Any]:
    mesh = agent.rooms.pop("mesh", None)
    if mesh is not None:
        mesh.close()
    return {}


def holder(port: int, paths: Paths | None, run: str = "") -> Any:
    """Name the holder of a port: by the lease of another run, else as /proc tells."""
    other = leases.leased(port, paths, run)
    if other is not None:
        return other
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
