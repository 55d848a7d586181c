"""Connect from here to the task ports of the peers, which answer to the nonce, and with large packets.

Whatever does not answer a connection at all is pinged, by the program `ping` where there is one: that tells
a closed port from a cut network.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from typing import Any, Iterable, List

from ..base.fault import reason
from ..serve.agent import Agent, Request

_MTU, _RTT = 60, 68  # of tcpi_pmtu (bytes) and tcpi_rtt (microseconds) in struct tcp_info
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
_TIMED_OUT, _CUT, _UNRESOLVED = "timed out", "no route", "does not resolve"
_FOREIGN = "answered by something else"
_LINE = 1024
_PIECE = 1 << 16  # bytes; the kernel would have to map and clear a larger buffer anew each time
_LARGE_SECONDS = 3.0  # for the large packets of one pair; a kernel has sent them again four times by then
_PING_SECONDS = 2.0
_THREADS, _PAUSE = 64, 0.01  # at most, and the seconds after which one more is started


def probe(_agent: Agent, request: Request) -> dict[str, Any]:
    """Ask every target, many at once; runs in a child, whose threads may be left behind."""
    nonce, timeout, large = request["nonce"], float(request["timeout"]), int(request.get("large") or 0)
    calls = [_Call(target, nonce, large, timeout) for target in request["targets"]]
    waiting = deque(calls)

    def work() -> None:
        while waiting:
            try:
                call = waiting.popleft()
            except IndexError:  # another thread has taken the last one
                return
            call.make()

    rounds = 1 + len(calls) // _THREADS
    deadline = time.monotonic() + (timeout + _LARGE_SECONDS) * rounds
    threads: List[threading.Thread] = []
    while waiting and len(threads) < _THREADS:  # good peers answer at once: few threads are enough
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        threads[-1].join(_PAUSE)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = {call.result["resolved"] for call in calls if call.result["why"] in (_TIMED_OUT, _CUT)}
    pings = ping(silent, min(timeout, _PING_SECONDS)) if nonce else {}
    return {"results": [{**call.result, "icmp": pings.get(call.result["resolved"])} for call in calls]}


class _Call:
    """Try the addresses of one target in turn until one is connected; then hear the nonce and what follows.

    What is lost in large packets alone (an MTU that is too big for the way) shows as a connection that opens,
    answers, and then stands still. A name server that does not answer holds up only its own name.
    """

    def __init__(self, target: dict[str, Any], nonce: str, large: int, timeout: float) -> None:
        self._target = target
        self._nonce = nonce
        self._large = large
        self._timeout = timeout
        self.result: dict[str, Any] = {
            "host": target["host"],
            "tcp": False,
            "tcp_ms": None,
            "why": _UNRESOLVED,
            "resolved": "",
            "large": None,
            "large_ms": None,
            "packet": None,
        }

    def make(self) -> None:
        host, port = self._target["address"], int(self._target["port"])
        deadline = time.monotonic() + self._timeout
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for place, (family, _, _, _, address) in enumerate(entries):
            share = (deadline - time.monotonic()) / (len(entries) - place)
            self.result.update(resolved=str(address[0]), why=_TIMED_OUT)
            began = time.monotonic()
            with socket.socket(family, socket.SOCK_STREAM) as peer:
                peer.settimeout(max(0.05, share))
                try:
                    peer.connect(address)
                except OSError as error:
                    self.result["why"] = _reason(error)
                    continue
                micros = _info(peer, _RTT)
                milliseconds = micros / 1000 if micros else _since(began)
                self.result.update(tcp_ms=milliseconds, why=_FOREIGN if self._nonce else "")
                if self._nonce:
                    peer.settimeout(max(0.05, deadline - time.monotonic()))
                    self._hear(peer)
                self.result["tcp"] = not self.result["why"]
                return

    def _hear(self, peer: socket.socket) -> None:
        """Say the nonce; read the line that only a peer's agent has, and the bytes behind it."""
        try:
            peer.sendall(f"{self._nonce}\n".encode())
            data = b""
            while b"\n" not in data and len(data) < _LINE:
                data += (piece := peer.recv(_PIECE))
                if not piece:
                    break
            line, _, more = data.partition(b"\n")
            word, _, name = line.decode("utf-8", "replace").partition(" ")
            if word != self._nonce:
                return
            self.result["why"] = "" if name in ("", self._target["host"]) else f"answered by {name}"
            if self.result["why"] or not self._large:
                return
            self.result.update(packet=_info(peer, _MTU), large=False)
            began, received = time.monotonic(), len(more)
            while received < self._large:
                peer.settimeout(max(0.001, began + min(self._timeout, _LARGE_SECONDS) - time.monotonic()))
                received += len(piece := peer.recv(_PIECE))
                if not piece:
                    return
            self.result.update(large=True, large_ms=_since(began))
        except OSError:
            return  # what is known by now stands


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)


def _info(peer: socket.socket, offset: int) -> int | None:
    """A field of struct tcp_info: what the kernel measured, without our own work in its way."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 4)
        return int(struct.unpack_from("I", info, offset)[0])
    except (OSError, struct.error):
        return None


def _reason(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "refused"
    if error.errno == errno.ETIMEDOUT or isinstance(error, socket.timeout):
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
