"""What this host sees of its peers' task ports: a TCP connection with the run's nonce, and a ping."""

from __future__ import annotations

import errno
import re
import socket
import struct
import subprocess
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .agent import Agent, Request

_RTT = 68  # of tcpi_rtt (microseconds) in struct tcp_info
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)


def probe(_agent: Agent, request: Request) -> Dict[str, Any]:
    """Ask every target, all at once; runs in a child, whose threads may be left behind."""
    timeout = float(request["timeout"])
    nonce = request["nonce"]
    targets = request["targets"]
    results = [_unknown(target) for target in targets]
    began = time.monotonic()
    tcp = _start(_look_tcp, targets, nonce, timeout, results)
    _join(tcp, began + 0.3)  # starting 64 pings at once would be measured as a slow network
    icmp = _start(_look_icmp, targets, nonce, timeout, results)
    _join(tcp + icmp, began + timeout + 1.0)
    return {"results": results}


def _start(
    look: Callable[..., None],
    targets: List[Dict[str, Any]],
    nonce: str,
    timeout: float,
    results: List[Dict[str, Any]],
) -> List[threading.Thread]:
    threads = []
    for target, result in zip(targets, results):  # noqa: B905 - Python 3.8
        threads.append(threading.Thread(target=look, args=(target, nonce, timeout, result), daemon=True))
        threads[-1].start()
    return threads


def _join(threads: List[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _unknown(target: Dict[str, Any]) -> Dict[str, Any]:
    """What stays when a thread does not end in time: only a name server can hold one so long."""
    return {
        "host": target["host"],
        "tcp": False,
        "tcp_ms": None,
        "why": "does not resolve",
        "icmp": None,
        "icmp_ms": None,
    }


def _look_tcp(target: Dict[str, Any], nonce: str, timeout: float, result: Dict[str, Any]) -> None:
    deadline = time.monotonic() + timeout
    try:
        addresses = socket.getaddrinfo(target["address"], int(target["port"]), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for family, _, _, _, address in addresses:
        tcp, ms, why = _exchange(family, address, target["host"], nonce, deadline)
        result.update(tcp=tcp, tcp_ms=ms, why=why)
        if ms is not None:
            return


def _exchange(
    family: int, address: Any, host: str, nonce: str, deadline: float
) -> Tuple[bool, Optional[float], str]:
    """Whether the peer's agent answered, the time to connect (ms, None if it did not), and why not."""
    connected = None
    try:
        with socket.socket(family, socket.SOCK_STREAM) as peer:
            began = time.monotonic()
            peer.settimeout(max(0.01, deadline - began))
            peer.connect(address)
            connected = _round_trip(peer) or round((time.monotonic() - began) * 1000, 3)
            peer.sendall(nonce.encode() + b"\n")
            why = _judge(_hear(peer, deadline), host, nonce)
            return not why, connected, why
    except socket.timeout:
        return False, connected, "timed out" if connected is None else "answered by something else"
    except OSError as error:
        return False, connected, _reason(error) if connected is None else "answered by something else"


def _round_trip(peer: socket.socket) -> Optional[float]:
    """The handshake in ms as the kernel measured it: our own threads would be in the way of a clock."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT + 4)
        return float(struct.unpack_from("I", info, _RTT)[0] / 1000)
    except (OSError, struct.error):
        return None


def _hear(peer: socket.socket, deadline: float) -> bytes:
    heard = b""
    while not heard.endswith(b"\n") and len(heard) < 1024:
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        data = peer.recv(1024)
        if not data:
            break
        heard += data
    return heard


def _judge(heard: bytes, host: str, nonce: str) -> str:
    """Empty when it is the peer that was meant."""
    said, _, name = heard.decode("utf-8", "replace").strip("\n").partition(" ")
    if said != nonce:
        return "answered by something else"
    return "" if name in ("", host) else f"answered by {name}"


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if error.errno == errno.ETIMEDOUT:
        return "timed out"
    if error.errno in _NO_ROUTE:
        return "no route"
    return error.strerror or str(error)


def _look_icmp(target: Dict[str, Any], _nonce: str, timeout: float, result: Dict[str, Any]) -> None:
    wait = str(max(1, round(timeout)))
    argv = ["ping", "-n", "-q", "-c", "1", "-W", wait, str(target["address"])]
    try:
        ping = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout + 1.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    icmp, ms = _read_ping(ping.returncode, ping.stdout.decode("utf-8", "replace"))
    result.update(icmp=icmp, icmp_ms=ms)


def _read_ping(status: int, text: str) -> Tuple[Optional[bool], Optional[float]]:
    """None where nothing was measured: ping is not permitted, or does not know the name."""
    if status == 0:
        times = re.search(r"= *[\d.]+/([\d.]+)/", text)
        return True, float(times.group(1)) if times else None
    if status == 1 and "permi" not in text.lower():
        return False, None
    return (False, None) if "nreachable" in text else (None, None)
