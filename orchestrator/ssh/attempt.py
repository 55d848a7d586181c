"""One try to open a connection: fabric's Connection over a socket of ours, and what its failure means."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import fabric
import paramiko

from orchestrator.ssh.channels import Transport
from orchestrator.ssh.hostkeys import HostKeyRefused, KnownHosts, Policy, preferred
from orchestrator.ssh.keys import Keyring
from orchestrator.ssh.link import cut
from orchestrator.ssh.login import Login, LoginRefused
from orchestrator.ssh.problems import ConnectTimeout, HungUp, NoBanner
from orchestrator.ssh.sockets import Proxy, tcp
from orchestrator.ssh.target import Deadline, Target

_WINDOW = 8 * 1024 * 1024  # bytes in flight per channel: 1 Gbit/s over 60 ms
_KEEPALIVE = 15
_WAKE = 1.0  # how often an idle connection looks whether a keepalive is due; paramiko: 0.1
_CHANNEL_TIMEOUT = 30.0
# Cheapest for the CPU first; what paramiko or the host does not have is left out.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")


@dataclass(frozen=True)
class Line:
    """An open, authenticated connection."""

    transport: paramiko.Transport
    hang_up: Callable[[], None]


def open_line(
    target: Target, *, through: Line | None, deadline: Deadline, keyring: Keyring, known: KnownHosts
) -> Line:
    """Connect and log in, from here or from the bastion at the end of `through`.

    What it raises is for `problems.explain`; `HungUp` is worth another try.
    """
    attempt = _Attempt(target, deadline)
    connection = attempt.connection(keyring, known)
    try:
        connection.connect_kwargs["sock"] = attempt.reach(through)
        connection.open()
    except Exception as error:
        cause = attempt.cause(error, through)
        attempt.give_up(connection)
        raise cause from error
    transport: paramiko.Transport = connection.transport
    transport.set_keepalive(_KEEPALIVE)
    transport.sock.settimeout(_WAKE)
    transport.channel_timeout = _CHANNEL_TIMEOUT
    return Line(transport, partial(attempt.give_up, connection))


class _Attempt:
    """The state of a try: its socket, its clock, its transport."""

    def __init__(self, target: Target, deadline: Deadline) -> None:
        self._target = target
        self._deadline = deadline
        self._proxy: Proxy | None = None
        self._socket: socket.socket | paramiko.Channel | None = None
        self._transport: paramiko.Transport | None = None

    def connection(self, keyring: Keyring, known: KnownHosts) -> Any:
        """A fabric Connection that verifies, logs in and negotiates as we want it."""
        left = self._left()
        connection = fabric.Connection(
            self._target.hostname,
            user=self._target.user,
            port=self._target.port,
            # Neither ssh_config nor files of fabric's own: the target is resolved already. And one
            # each: a connection writes into its configuration, which is empty for that moment.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=False,
            connect_kwargs={
                "auth_strategy": Login(self._target, keyring),
                "transport_factory": partial(self._make_transport, known.types(self._target)),
                "timeout": left,
                "banner_timeout": left,
                "auth_timeout": left,
                "channel_timeout": left,
            },
        )
        connection.client.set_missing_host_key_policy(Policy(self._target, known))
        return connection

    def reach(self, through: Line | None) -> socket.socket | paramiko.Channel:
        """Something connected to the target's SSH port."""
        target = self._target
        if through:
            end = (target.hostname, target.port)
            self._socket = through.transport.open_channel(
                "direct-tcpip", end, ("127.0.0.1", 0), timeout=self._left()
            )
        elif target.proxy_command:
            self._proxy = Proxy(target)
            self._socket = self._proxy.socket
        else:
            self._socket = tcp(target, self._deadline)
        return self._socket

    def give_up(self, connection: Any) -> None:
        """Close everything; a thread that reads is woken."""
        cut(self._socket)
        with contextlib.suppress(Exception):  # whatever state it is in, it is to go
            connection.client.close()
        if self._proxy:
            self._proxy.stop()
        if self._socket:
            self._socket.close()

    def cause(self, error: Exception, through: Line | None) -> Exception:
        """The error worth showing: paramiko words a time-out as something else."""
        if isinstance(error, HostKeyRefused):
            return error
        if through and not through.transport.is_active():  # which a login takes for a refusal
            return HungUp("the connection to its bastion was lost")
        if isinstance(error, LoginRefused):
            return error
        if self._proxy and (failure := self._proxy.failure()):
            return failure
        late, seconds = self._deadline.over, self._deadline.seconds
        if self._transport is not None and not self._transport.remote_version:
            if "Indecipherable" in str(error):
                return NoBanner("what answers there speaks another protocol")
            if late:
                return NoBanner(f"no banner within {seconds:.0f} s")
            return HungUp("it hung up before its banner")
        if late and not isinstance(error, OSError):
            return ConnectTimeout("the key exchange or the login", seconds)
        return error

    def _left(self) -> float:
        return max(0.1, self._deadline.left)

    def _make_transport(self, known: tuple[str, ...], sock: Any, **options: Any) -> paramiko.Transport:
        """A transport with our windows, our algorithms, and first the key types that can be checked."""
        transport = Transport(sock, default_window_size=_WINDOW, **options)
        self._transport = transport
        security = transport.get_security_options()
        security.kex = preferred(_KEX, security.kex)
        security.ciphers = preferred(_CIPHERS, security.ciphers)
        security.key_types = preferred(known, security.key_types)
        return transport
