"""From a target to something connected: TCP, a ProxyCommand's pipes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import paramiko

from orchestrator.ssh.failures import ConnectTimeout
from orchestrator.ssh.keyfile import reason
from orchestrator.ssh.target import Deadline, Target

_BETWEEN_ATTEMPTS = 1.0  # seconds, as ssh waits
_SIOCGIFADDR = 0x8915
_SILENCE = 60  # seconds of unanswered data after which the kernel gives the connection up
_TRAILING = 5.0  # an address that does not answer leaves at least this much to the next one


def tcp(target: Target, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers, as often as ConnectionAttempts asks for it."""
    for _ in range(target.attempts - 1):
        try:
            return _tcp_once(target, deadline)
        except OSError:
            if deadline.left <= _BETWEEN_ATTEMPTS:
                raise
            time.sleep(_BETWEEN_ATTEMPTS)
    return _tcp_once(target, deadline)


def _tcp_once(target: Target, deadline: Deadline) -> socket.socket:
    """Raise the first address's error."""
    found = socket.getaddrinfo(target.hostname, target.port, target.family, socket.SOCK_STREAM)
    errors: list[OSError] = []
    for left, (family, kind, proto, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        remaining = deadline.left
        share = remaining if left == 1 else max(remaining / left, min(remaining, _TRAILING))
        sock = socket.socket(family, kind, proto)
        try:
            if share <= 0:
                raise ConnectTimeout("connecting", deadline.seconds)
            _leave_from(sock, target, family)
            sock.settimeout(share)
            sock.connect(address)
            tune(sock)
            return sock
        except OSError as error:
            sock.close()
            errors.append(error)
    raise errors[0]


def _leave_from(sock: socket.socket, target: Target, family: int) -> None:
    """Begin the connection where BindAddress or BindInterface says."""
    if target.bind_address:
        keyword, value = "BindAddress", target.bind_address
    elif target.bind_interface:
        keyword, value = "BindInterface", target.bind_interface
    else:
        return
    try:
        own = value if target.bind_address else _address_of(value, family)
        found = socket.getaddrinfo(own, 0, family, socket.SOCK_STREAM)
        sock.bind(found[0][4])
    except OSError as error:  # also a name that does not resolve
        raise OSError(errno.EADDRNOTAVAIL, f"{keyword} {value}: {reason(error)}") from error


def _address_of(interface: str, family: int) -> str:
    """The address of a network interface."""
    if family == socket.AF_INET:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            name = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, name)[20:24])
    lines = [line.split() for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()]
    # The fourth word is the scope: link-local addresses lead nowhere without their interface.
    hexes = [line[0] for line in lines if line[5] == interface and line[3] != "20"]
    if not hexes:
        raise OSError(errno.EADDRNOTAVAIL, "it has no IPv6 address")
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(hexes[0]))


def tune(sock: socket.socket) -> None:
    """Small messages leave at once; a peer that is gone is noticed without an answer from us."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 20),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", _SILENCE * 1000),
    ):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def stalled(sock: object) -> str:
    """What the kernel says of packets of ours that nobody acknowledges; "" while all is well.

    For a TCP connection of our own, on Linux; of others nothing is known.
    """
    if not isinstance(sock, socket.socket) or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return ""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (AttributeError, OSError):
        return ""
    # struct tcp_info of the kernel: eight bytes (retransmits is the third), then numbers of four.
    tries, size, waiting = info[2], *struct.unpack_from("=I", info, 16), *struct.unpack_from("=I", info, 24)
    if not (tries and waiting):
        return ""
    return f"{waiting} packets of ours, of {size} bytes at most, are sent again and again and never arrive"


class Proxy:
    """A ProxyCommand, with a real socket instead of paramiko's pipes (which spin at their end)."""

    def __init__(self, target: Target) -> None:
        self._command = target.proxy_command or ""
        self.socket, theirs = socket.socketpair()
        self._passes_fd = target.proxy_passes_fd
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the command
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self._command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
            )
        # It ends when its socket does; somebody has to collect it then.
        threading.Thread(target=self._process.wait, name="proxy-command", daemon=True).start()

    def connected(self, deadline: Deadline) -> socket.socket:
        """What leads to the host: the command's pipes, or (ProxyUseFdpass) the socket that it hands us."""
        if not self._passes_fd:
            return self.socket
        self.socket.settimeout(max(0.1, deadline.left))
        _, fds, _, _ = socket.recv_fds(self.socket, 1, 1)
        self.socket.close()
        if not fds:
            raise ConnectionResetError("the ProxyCommand handed over no socket")
        return socket.socket(fileno=fds[0])

    def failure(self) -> paramiko.ProxyCommandFailure | None:
        """What to say when the connection failed, if it is the command's fault: it has ended."""
        try:
            code = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return None
        self._said.seek(0)
        said = self._said.read()[-400:].decode("utf-8", "replace").strip().splitlines()
        # ssh's own last line, "stdio forwarding failed", is said for any reason; the one before has it.
        lines = said[-2:] if said and said[-1] == "stdio forwarding failed" else said[-1:]
        return paramiko.ProxyCommandFailure(self._command, ", ".join(lines) or f"it ended with status {code}")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._said.close()
