"""Opening connections: bounded, retried where a busy sshd hangs up, bastions shared."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fabric
import paramiko

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.ssh.hostkeys import HostKeyRefused, KnownHosts, Policy, preferred
from orchestrator.ssh.keys import Keyring, Secrets
from orchestrator.ssh.link import SshLink, cut
from orchestrator.ssh.login import Login, LoginRefused
from orchestrator.ssh.problems import ConnectTimeout, HungUp, NoBanner, explain
from orchestrator.ssh.resolve import resolve
from orchestrator.ssh.sockets import Proxy, tcp
from orchestrator.ssh.target import Target

_PARALLEL = 32
_WINDOW = 8 * 1024 * 1024  # bytes in flight per channel: 1 Gbit/s over 60 ms
_PAUSES = (0.2, 0.4, 0.8, 1.6, 2.0, 2.0)  # seconds at most between tries
_KEEPALIVE = 15
_WAKE = 1.0  # how often an idle connection looks whether a keepalive is due
_CHANNEL_TIMEOUT = 30.0
# Cheapest for the CPU first; what paramiko or the host does not have is left out.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")


class SshConnector:
    """Opens links over SSH. Thread-safe; one per command of ours."""

    def __init__(self, secrets: Secrets | None = None, *, parallel: int = _PARALLEL) -> None:
        self._keyring = Keyring(secrets)
        self._known = KnownHosts()
        self._turn = threading.BoundedSemaphore(parallel)
        self._lock = threading.Lock()
        self._bastions: dict[tuple[Target, ...], _Bastion] = {}

    def connect(self, host: Host, timeout: float) -> SshLink:
        """Connect and authenticate within `timeout` seconds; raise HostError."""
        deadline = time.monotonic() + timeout
        target = resolve(host)
        if target.connect_timeout is not None:
            deadline = min(deadline, time.monotonic() + target.connect_timeout)
        gateway = self._gateway(host.name, target.jumps, deadline)
        try:
            line = self._open_patiently(target, gateway, deadline)
        except Exception as error:
            raise explain(error, host.name, target) from error
        return SshLink(line.transport, partial(explain, host=host.name, target=target), line.hang_up)

    def close(self) -> None:
        """Close the bastions' connections and the agents' sockets."""
        with self._lock:
            bastions, self._bastions = list(self._bastions.values()), {}
        for bastion in reversed(bastions):
            if bastion.line:
                bastion.line.hang_up()
        self._keyring.close()

    def _gateway(self, host: str, jumps: tuple[Target, ...], deadline: float) -> _Line | None:
        """The connection to the last of the jumps, opened by whoever comes first."""
        if not jumps:
            return None
        asked = time.monotonic()
        with self._lock:
            bastion = self._bastions.setdefault(jumps, _Bastion())
        with bastion.lock:
            if bastion.line and bastion.line.transport.is_active():
                return bastion.line
            if bastion.failed_at < asked:  # else it failed while we waited for our turn
                self._open_bastion(bastion, host, jumps, deadline)
            if bastion.error:
                raise _for_host(bastion.error, host, jumps[-1])
            return bastion.line

    def _open_bastion(self, bastion: _Bastion, host: str, jumps: tuple[Target, ...], deadline: float) -> None:
        bastion.line = bastion.error = None
        before = self._gateway(host, jumps[:-1], deadline)
        try:
            bastion.line = self._open_patiently(jumps[-1], before, deadline)
        except Exception as error:
            bastion.error = explain(error, host, jumps[-1])
            bastion.failed_at = time.monotonic()

    def _open_patiently(self, target: Target, gateway: _Line | None, deadline: float) -> _Line:
        """Try again, later and at random, when the host hangs up at once."""
        for longest in _PAUSES:
            try:
                with self._turn:
                    return self._open(target, gateway, deadline)
            except (HungUp, ConnectionResetError):
                pause = longest * random.uniform(0.3, 1.0)  # noqa: S311 - spreads, hides nothing
                if time.monotonic() + pause > deadline - 1.0:
                    raise
            time.sleep(pause)
        with self._turn:
            return self._open(target, gateway, deadline)

    def _open(self, target: Target, gateway: _Line | None, deadline: float) -> _Line:
        attempt = _Attempt(deadline)
        connection = self._connection(target, gateway, attempt)
        try:
            if gateway is None:
                attempt.reach(target)
                connection.connect_kwargs["sock"] = attempt.socket
            connection.open()
        except Exception as error:
            cause = attempt.cause(error)
            attempt.give_up(connection)
            raise cause from error
        transport: paramiko.Transport = connection.transport
        transport.set_keepalive(_KEEPALIVE)
        transport.sock.settimeout(_WAKE)  # paramiko: ten times a second
        transport.channel_timeout = _CHANNEL_TIMEOUT
        return _Line(transport, connection, partial(attempt.give_up, connection))

    def _connection(self, target: Target, gateway: _Line | None, attempt: _Attempt) -> Any:
        known = self._known.for_target(target)
        names = tuple(dict.fromkeys(key.type for key in known if not key.marker))
        left = attempt.left()
        connection = fabric.Connection(
            target.hostname,
            user=target.user,
            port=target.port,
            # Neither ssh_config nor files of fabric's own: the target is resolved already. And one
            # each: a connection writes into its configuration, which is empty for that moment.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=gateway.connection if gateway else False,
            connect_kwargs={
                "auth_strategy": Login(target, self._keyring),
                "transport_factory": partial(_transport, attempt, names),
                "timeout": left,
                "banner_timeout": left,
                "auth_timeout": left,
                "channel_timeout": left,
            },
        )
        connection.client.set_missing_host_key_policy(Policy(target, self._known))
        return connection


@dataclass
class _Line:
    """An open connection: fabric's object, which is a gateway for others, and paramiko's."""

    transport: paramiko.Transport
    connection: Any
    hang_up: Callable[[], None]


@dataclass
class _Bastion:
    lock: threading.Lock = field(default_factory=threading.Lock)
    line: _Line | None = None
    error: HostError | None = None
    failed_at: float = float("-inf")


class _Attempt:
    """One try to connect: its socket, its clock, and what to make of its failure."""

    def __init__(self, deadline: float) -> None:
        self._began = time.monotonic()
        self._deadline = deadline
        self._proxy: Proxy | None = None
        self.socket: socket.socket | paramiko.Channel | None = None
        self.transport: paramiko.Transport | None = None

    def left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def reach(self, target: Target) -> None:
        if target.proxy_command:
            self._proxy = Proxy(target)
            self.socket = self._proxy.socket
        else:
            self.socket = tcp(target, self._deadline)

    def give_up(self, connection: Any) -> None:
        """Close everything; a thread that reads is woken."""
        cut(self.socket)
        with contextlib.suppress(Exception):  # whatever state it is in, it is to go
            connection.client.close()
        if self._proxy:
            self._proxy.stop()
        if self.socket:
            self.socket.close()

    def cause(self, error: Exception) -> Exception:
        """The error worth showing: paramiko words a time-out as something else."""
        if isinstance(error, HostKeyRefused | LoginRefused):
            return error
        if self._proxy and (failure := self._proxy.failure()):
            return failure
        spoke = self.transport is not None and bool(self.transport.remote_version)
        late = time.monotonic() >= self._deadline - 0.05
        seconds = self._deadline - self._began
        if self.transport is not None and not spoke:
            if "Indecipherable" in str(error):
                return NoBanner("what answers there speaks another protocol")
            if late:
                return NoBanner(f"no banner within {seconds:.0f} s")
            return HungUp("it hung up before its banner")
        if late and not isinstance(error, OSError):
            return ConnectTimeout("the key exchange or the login", seconds)
        return error


def _transport(
    attempt: _Attempt, known_types: tuple[str, ...], sock: Any, **options: Any
) -> paramiko.Transport:
    """A transport with our algorithms and windows."""
    transport = paramiko.Transport(sock, default_window_size=_WINDOW, **options)
    attempt.socket, attempt.transport = sock, transport
    security = transport.get_security_options()
    security.kex = preferred(_KEX, security.kex)
    security.ciphers = preferred(_CIPHERS, security.ciphers)
    security.key_types = preferred(known_types, security.key_types)
    return transport


def _for_host(error: HostError, host: str, bastion: Target) -> HostError:
    """The bastion's failure as this host's; hosts behind it fold into one message."""
    what = f"cannot be reached: its bastion {bastion.alias} {error.what}"
    return HostError(host, what, kind=error.kind, why=error.why, hint=error.hint)
