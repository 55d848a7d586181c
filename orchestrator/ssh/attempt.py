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
from paramiko.ssh_exception import IncompatiblePeer

from orchestrator.ssh import algorithms
from orchestrator.ssh.algorithms import preferred, preferred_host_keys
from orchestrator.ssh.channels import Transport
from orchestrator.ssh.failures import (
    ConnectTimeout,
    HungUp,
    LargePackets,
    NoBanner,
    NothingInCommon,
    NoWayOn,
)
from orchestrator.ssh.hostkeys import HostKeyRefused, KnownHosts, Policy
from orchestrator.ssh.keys import Keyring
from orchestrator.ssh.knowncommand import CommandFailedError
from orchestrator.ssh.link import cut
from orchestrator.ssh.login import Login, LoginRefused
from orchestrator.ssh.sockets import Proxy, stalled, tcp
from orchestrator.ssh.target import Deadline, Target

_WINDOW = 8 * 1024 * 1024  # bytes in flight per channel: 1 Gbit/s over 60 ms
_KEEPALIVE = 15
_WAKE = 1.0  # how often an idle connection looks whether a keepalive is due; paramiko: 0.1
_CHANNEL_TIMEOUT = 30.0
# Cheapest for the CPU first; what paramiko or the host does not have is left out.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")
# What paramiko has, by the names of `Algorithms`.
_OURS: dict[str, tuple[str, ...]] = {
    "kex": paramiko.Transport._preferred_kex,  # type: ignore[attr-defined]  # noqa: SLF001
    "ciphers": paramiko.Transport._preferred_ciphers,  # type: ignore[attr-defined]  # noqa: SLF001
    "macs": paramiko.Transport._preferred_macs,  # type: ignore[attr-defined]  # noqa: SLF001
    "host_keys": paramiko.Transport._preferred_keys,  # type: ignore[attr-defined]  # noqa: SLF001
}
_SIGNATURES: tuple[str, ...] = paramiko.Transport._preferred_pubkeys  # type: ignore[attr-defined]  # noqa: SLF001


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
        self._transport: Transport | None = None

    def connection(self, keyring: Keyring, known: KnownHosts) -> Any:
        """A fabric Connection that verifies, logs in and negotiates as we want it."""
        if (nothing := algorithms.nothing_allowed(self._target.algorithms, _OURS)) is not None:
            raise NothingInCommon(nothing)
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
                "disabled_algorithms": {"pubkeys": self._ruled_out_signatures()},
            },
        )
        connection.client.set_missing_host_key_policy(Policy(self._target, known, self._peer))
        return connection

    def reach(self, through: Line | None) -> socket.socket | paramiko.Channel:
        """Something connected to the target's SSH port."""
        target = self._target
        if through:
            end = (target.hostname, target.port)
            try:
                self._socket = through.transport.open_channel(
                    "direct-tcpip", end, ("127.0.0.1", 0), timeout=self._left()
                )
            except paramiko.SSHException as error:
                if through.transport.is_active() and self._deadline.over:
                    raise NoWayOn(target.jumps[-1], self._deadline.seconds) from error
                raise
        elif target.proxy_command:
            self._proxy = Proxy(target)
            self._socket = self._proxy.connected(self._deadline)
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
        if isinstance(error, (LoginRefused, CommandFailedError, NothingInCommon)):
            return error
        if isinstance(error, IncompatiblePeer) and self._transport and self._transport.offer:
            nothing = algorithms.disagreement(self._target.algorithms, _OURS, self._transport.offer)
            return NothingInCommon(nothing) if nothing else error
        if self._proxy and (failure := self._proxy.failure()):
            return failure
        late, seconds = self._deadline.over, self._deadline.seconds
        if self._transport is not None and not self._transport.remote_version:
            if "Indecipherable" in str(error):
                return NoBanner("what answers there speaks another protocol")
            if late:
                return NoBanner(f"no banner within {seconds:.0f} s")
            return HungUp("it hung up before its banner")
        if late and self._transport is not None:
            lost = stalled(self._socket)
            if not lost and self._transport.offer is None:
                lost = "its larger packets get lost on the way (MTU), or its sshd hangs"
            if lost:
                return LargePackets(
                    f"no key exchange or login within {seconds:.0f} s after its banner: {lost}"
                )
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
        wanted = self._target.algorithms
        security.kex = preferred(_KEX, algorithms.allowed(wanted.kex, security.kex))
        security.ciphers = preferred(_CIPHERS, algorithms.allowed(wanted.ciphers, security.ciphers))
        security.digests = algorithms.allowed(wanted.macs, security.digests)
        allowed = algorithms.allowed(wanted.host_keys, security.key_types)
        security.key_types = preferred_host_keys(known, allowed)
        return transport

    def _ruled_out_signatures(self) -> list[str]:
        spec = self._target.algorithms.user_keys
        return [name for name in _SIGNATURES if name not in algorithms.allowed(spec, _SIGNATURES)]

    def _peer(self) -> str | None:
        """The address at the other end of a TCP connection of our own."""
        if self._proxy or not isinstance(self._socket, socket.socket):
            return None
        return str(self._socket.getpeername()[0])
