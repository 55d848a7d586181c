"""How much goes from here to a peer in a second, over its task port; runs in a child."""

from __future__ import annotations

import os
import select
import socket
import time

from ..base.annotations import Any
from ..base.fault import reason
from ..serve.agent import Agent, Request
from .call import unacknowledged

_PIECE = 1 << 20
_MOST = 2 << 30  # bytes; a line on which that takes less than a second is fast enough
_SECONDS = 1.0
_WARM = 0.25  # of the time, in which TCP finds its pace
_CONNECT = 5.0


def measure(_agent: Agent, request: Request) -> dict[str, Any]:
    """{"rate": bytes a second}; None and `why` where there is no connection."""
    target = request["target"]
    try:
        with socket.create_connection((target["address"], int(target["port"])), _CONNECT) as peer:
            peer.sendall(request["nonce"].encode() + b" sink\n")
            if not peer.recv(1024).startswith(request["nonce"].encode()):
                return {"rate": None, "why": "answered by something else"}
            return {"rate": _rate(peer), "why": ""}
    except OSError as error:
        return {"rate": None, "why": reason(error)}


def _rate(peer: socket.socket) -> float | None:
    peer.setblocking(False)
    poll = select.poll()
    poll.register(peer, select.POLLOUT)
    piece = memoryview(os.urandom(_PIECE))
    began = time.monotonic()
    marks: list[tuple[float, int]] = []  # when, and how much had arrived by then
    sent = 0
    while True:
        now = time.monotonic() - began
        if now >= _SECONDS * _WARM or sent >= _MOST:
            marks.append((now, sent - unacknowledged(peer)))
        if now >= _SECONDS or sent >= _MOST:
            break
        poll.poll(50)
        try:
            sent += peer.send(piece)
        except BlockingIOError:
            continue
    (first, before), (last, after) = marks[0], marks[-1]
    if len(marks) == 1 or last <= first:
        return after / last if last > 0 else None
    return (after - before) / (last - first)
