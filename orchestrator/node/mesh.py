"""Listening on the task ports for the peers' agents, so that they can measure what TensorFlow will meet.

A peer that sends the run's nonce is answered with the nonce and this host's name; then it hangs up.
It closes first, so that TIME_WAIT stays on its side and not on the port that the task needs next.
"""

from __future__ import annotations

import errno
import socket
import struct

from .fault import NodeError
from .loop import READ
from .ports import holder, leased

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .agent import Agent, Request

_PEERS = 512  # connections at a time; more than that are no peers
_PATIENCE = 30.0  # seconds for one of them


class Mesh:
    """The listeners of one preflight and the peers that are talking to them."""

    def __init__(self, agent: Agent, nonce: str, host: str) -> None:
        self._agent = agent
        self._question = nonce.encode() + b"\n"
        self._answer = f"{nonce} {host}\n".encode()
        self._open: Dict[int, socket.socket] = {}
        self._listeners: List[socket.socket] = []

    def listen(self, port: int) -> bool:
        """False when somebody has the port."""
        try:
            listener = _bind(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise NodeError("port", f"cannot listen on port {port}", error.strerror or str(error)) from None
        self._listeners.append(listener)
        self._agent.loop.watch(listener.fileno(), READ, lambda: self._accept(listener))
        return True

    def close(self) -> None:
        for listener in self._listeners:
            self._agent.loop.unwatch(listener.fileno())
            listener.close()
        for peer in list(self._open.values()):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up(peer)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return  # it went away in the queue
        if len(self._open) >= _PEERS:
            peer.close()
            return
        peer.setblocking(False)
        heard = bytearray()
        self._open[peer.fileno()] = peer
        self._agent.loop.watch(peer.fileno(), READ, lambda: self._hear(peer, heard))
        self._agent.loop.after(_PATIENCE, lambda: self._hang_up(peer))

    def _hear(self, peer: socket.socket, heard: bytearray) -> None:
        try:
            data = peer.recv(256)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        heard += data
        if not data or not self._question.startswith(heard):
            self._hang_up(peer)
        elif heard == self._question:
            peer.send(self._answer)  # a few bytes into an empty buffer

    def _hang_up(self, peer: socket.socket) -> None:
        if peer.fileno() >= 0 and self._open.pop(peer.fileno(), None) is not None:
            self._agent.loop.unwatch(peer.fileno())
            peer.close()


def listen(agent: Agent, request: Request) -> Dict[str, Any]:
    """Take every free port; say who has the others. A second call replaces the first.

    A port that is leased to another run is left alone: its task may be about to listen there.
    """
    unlisten(agent, request)
    mesh = agent.rooms["mesh"] = Mesh(agent, request["nonce"], request.get("host", ""))
    paths = agent.paths if agent.state_error is None else None
    run = request.get("run", "")
    free: List[int] = []
    busy: List[Dict[str, Any]] = []
    for port in sorted({int(port) for port in request["ports"]}):
        if leased(port, paths, run) is None and mesh.listen(port):
            free.append(port)
        else:
            busy.append({"port": port, "holder": holder(port, paths, run)})
    return {"listening": free, "busy": busy}


def unlisten(agent: Agent, _request: Request) -> Dict[str, Any]:
    mesh = agent.rooms.pop("mesh", None)
    if mesh is not None:
        mesh.close()
    return {}


def _bind(port: int) -> socket.socket:
    """As TensorFlow binds: every address, both families where the machine has both."""
    families = [socket.AF_INET6, socket.AF_INET] if socket.has_ipv6 else [socket.AF_INET]
    for family in families:
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without this family
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::" if family == socket.AF_INET6 else "", port))
            listener.listen(_PEERS)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            if family == socket.AF_INET or error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise OSError(errno.EAFNOSUPPORT, "no TCP on this machine")
