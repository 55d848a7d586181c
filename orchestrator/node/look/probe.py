"""What this host sees of its peers' task ports: a TCP connection with the run's nonce, and a ping."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from ..base.annotations import Any
from ..serve.agent import Agent, Request
from . import icmp
from .call import Addresses, Call

_LARGE_SECONDS = 3.0  # for the large packets of one pair; a kernel has sent them again four times by then
_GLANCE = 0.01  # seconds between two looks whether the last bytes were acknowledged
_MOST = 1 << 20


def probe(_agent: Agent, request: Request) -> dict[str, Any]:
    """Ask every target, all at once; runs in a child, whose threads may be left behind.

    First TCP, then pings: both together would be in each other's way.
    """
    nonce, timeout, targets = request["nonce"], float(request["timeout"]), request["targets"]
    large = os.urandom(min(int(request.get("large") or 0), _MOST))  # no VPN on the way can compress it
    deadline = time.monotonic() + timeout
    found = _resolve(targets, deadline)
    calls = [
        Call(target, addresses, nonce, large, min(timeout, _LARGE_SECONDS))
        for target, addresses in zip(targets, found)  # noqa: B905
    ]
    _make(calls, deadline, timeout)
    if not nonce:  # the tasks themselves listen there, and only the way to them is asked about
        return {"results": [call.result({}) for call in calls]}
    pings = icmp.ping((call.pinged for call in calls if call.pinged is not None), min(timeout, 3.0))
    return {"results": [call.result(pings) for call in calls]}


def _make(calls: list[Call], deadline: float, timeout: float) -> None:
    """Serve all calls until each has ended or its time is over."""
    poll = select.poll()
    open_calls: dict[int, Call] = {}
    settling: set[int] = set()

    def begin(call: Call) -> None:
        share = max(0.05, min(timeout, deadline - time.monotonic()) / max(1, len(call.left)))
        call.connect(share)
        if call.socket is not None:
            open_calls[call.socket.fileno()] = call
            poll.register(call.socket, call.awaits)

    def serve(fd: int, call: Call, *, ready: bool) -> None:
        now = time.monotonic()
        if ready:
            call.go_on()
        elif call.expires <= now:
            call.expire()
        elif call.settles:
            call.look()
        if call.socket is not None:
            poll.modify(fd, call.awaits)
            (settling.add if call.settles else settling.discard)(fd)
            return
        poll.unregister(fd)
        settling.discard(fd)
        del open_calls[fd]
        if not call.connected:
            begin(call)

    for call in calls:
        begin(call)
    while open_calls:
        patience = min(call.expires for call in open_calls.values()) - time.monotonic()
        if settling:
            patience = min(patience, _GLANCE)
        ready = {fd for fd, _ in poll.poll(max(0, int(patience * 1000) + 1))}
        now = time.monotonic()
        due = {fd for fd, call in open_calls.items() if call.expires <= now}
        # As a list: a number that is free again may belong to the next call already.
        for fd, call in [(fd, open_calls[fd]) for fd in ready | due | settling]:
            serve(fd, call, ready=fd in ready)


def _resolve(targets: list[dict[str, Any]], deadline: float) -> list[Addresses]:
    """The addresses of each target; a name server that does not answer holds up only its own name."""
    found: list[Addresses] = [[] for _ in targets]
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


def _look_up_name(target: dict[str, Any], found: list[Addresses], number: int) -> None:
    try:
        found[number] = _look_up(target, 0)
    except (OSError, UnicodeError):
        pass  # it stays without an address


def _look_up(target: dict[str, Any], flags: int) -> Addresses:
    name: str | bytes = target["address"]
    if flags & socket.AI_NUMERICHOST and target["address"].isascii():
        name = target["address"].encode()  # for text, the tables of international names are loaded
    entries = socket.getaddrinfo(name, int(target["port"]), type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in entries]
