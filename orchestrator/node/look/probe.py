"""What this host sees of its peers' task ports: a TCP connection with the run's nonce, and a ping."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from . import icmp
from .call import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set, Union

    from ..serve.agent import Agent, Request
    from .call import Addresses

_LARGE_SECONDS = 3.0  # for the large packets of one pair; a kernel has sent them again four times by then
_GLANCE = 0.01  # seconds between two looks whether the last bytes were acknowledged
_MOST = 1 << 20


def probe(_agent: Agent, request: Request) -> Dict[str, Any]:
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


def _make(calls: List[Call], deadline: float, timeout: float) -> None:
    """Serve all calls until each has ended or its time is over."""
    poll = select.poll()
    open_calls: Dict[int, Call] = {}
    settling: Set[int] = set()

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
    name: Union[str, bytes] = target["address"]
    if flags & socket.AI_NUMERICHOST and target["address"].isascii():
        name = target["address"].encode()  # for text, the tables of international names are loaded
    entries = socket.getaddrinfo(name, int(target["port"]), type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in entries]
