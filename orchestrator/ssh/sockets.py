"""From a target to something connected: TCP, a ProxyCommand's pipes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import threading
from typing import IO

from orchestrator.ssh.problems import ConnectTimeout, ProxyFailed
from orchestrator.ssh.target import Deadline, Target

_SILENCE = 60  # seconds of unanswered data after which the kernel gives the connection up
_TRAILING = 5.0  # an address that does not answer leaves at least this much to the next one


def tcp(target: Target, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers; raise the first address's error."""
    found = socket.getaddrinfo(target.hostname, target.port, target.family, socket.SOCK_STREAM)
    errors: list[OSError] = []
    for left, (family, kind, proto, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        remaining = deadline.left
        share = remaining if left == 1 else max(remaining / left, min(remaining, _TRAILING))
        sock = socket.socket(family, kind, proto)
        try:
            if share <= 0:
                raise ConnectTimeout("connecting", deadline.seconds)
            sock.settimeout(share)
            sock.connect(address)
            tune(sock)
            return sock
        except OSError as error:
            sock.close()
            errors.append(error)
    raise errors[0]


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


class Proxy:
    """A ProxyCommand, with a real socket instead of paramiko's pipes (which spin at their end)."""

    def __init__(self, target: Target) -> None:
        self._command = target.proxy_command or ""
        self.socket, theirs = socket.socketpair()
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

    def failure(self) -> ProxyFailed | None:
        """What to say when the connection failed, if it is the command's fault: it has ended."""
        try:
            code = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return None
        self._said.seek(0)
        said = self._said.read()[-400:].decode("utf-8", "replace").strip().splitlines()
        return ProxyFailed(self._command, said[-1] if said else f"it ended with status {code}")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._said.close()
