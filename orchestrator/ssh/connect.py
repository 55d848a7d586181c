"""Opening links with fabric and paramiko: bounded, and through bastions that hosts share."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import fabric
import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.ssh.hostkeys import Beyond, HostKeyRefused, KnownHosts, Policy
from orchestrator.ssh.keys import Keyring, Login, LoginRefused, Secrets
from orchestrator.ssh.link import SshLink, Transport, cut
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.ssh.problems import HungUp, NoBanner, explain
from orchestrator.ssh.resolve import ALGORITHMS, Target, resolve

# Without a handler Python prints paramiko's tracebacks on stderr; a debug log may still collect them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_PARALLEL = 32
_WINDOW = 8 * 1024 * 1024  # bytes in flight per channel: 1 Gbit/s over 60 ms
_KEEPALIVE = 15
_WAKE = 1.0  # how often an idle connection looks whether a keepalive is due; paramiko: 0.1
_CHANNEL_TIMEOUT = 30.0
_SILENCE = 60  # seconds of unanswered data after which the kernel gives the connection up
_TRAILING = 5.0  # an address that does not answer leaves at least this much to the next one
# Cheapest for the CPU first; what paramiko or the host does not have is left out.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")
_SIGNED_BY = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
_SIGNATURES: tuple[str, ...] = paramiko.Transport._preferred_pubkeys  # type: ignore[attr-defined]  # noqa: SLF001


@dataclass(frozen=True)
class Deadline:
    """When to give up, and after how long that is."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        return self.left < 0.05


@dataclass(frozen=True)
class Line:
    """An open, authenticated connection."""

    transport: paramiko.Transport
    hang_up: Callable[[], None]


@dataclass
class _Bastion:
    lock: threading.Lock = field(default_factory=threading.Lock)
    line: Line | None = None
    error: HostError | None = None
    failed_at: float = float("-inf")


class SshConnector:
    """Opens links over SSH. Thread-safe; one per command of ours."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._keyring = Keyring(secrets)
        self._known = KnownHosts()
        self._turn = threading.BoundedSemaphore(_PARALLEL)
        self._lock = threading.Lock()
        self._bastions: dict[tuple[Target, ...], _Bastion] = {}

    def connect(self, host: Host, timeout: float) -> SshLink:
        """Connect and authenticate within `timeout` seconds; raise HostError."""
        began = time.monotonic()
        target = resolve(host)
        timeout = min(timeout, target.connect_timeout or timeout)
        try:
            line = self._open(host.name, target, Deadline(timeout, began))
        except HostError:  # a bastion's, which is worded
            raise
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

    def _open(self, host: str, target: Target, deadline: Deadline) -> Line:
        """Connect through the jumps."""
        through = self._bastion(target.jumps, host, deadline) if target.jumps else None
        with self._turn:
            return _Attempt(target, deadline, through).line(self._keyring, self._known)

    def _bastion(self, jumps: tuple[Target, ...], host: str, deadline: Deadline) -> Line | None:
        """Return the connection to the last of the jumps, opened by whoever comes first and shared by all.

        One that is lost is opened again. Raise HostError, worded for the host behind it.
        """
        asked = time.monotonic()
        with self._lock:
            bastion = self._bastions.setdefault(jumps, _Bastion())
        with bastion.lock:
            if bastion.line and bastion.line.transport.is_active():
                return bastion.line
            if bastion.failed_at < asked:  # else it failed while we waited for our turn
                if bastion.line:
                    bastion.line.hang_up()
                bastion.line = bastion.error = None
                target = replace(jumps[-1], jumps=jumps[:-1])
                try:
                    bastion.line = self._open(host, target, deadline)
                except Exception as error:
                    bastion.error = explain(error, host, target)
                    if bastion.error is not error:
                        bastion.error.__cause__ = error
                    bastion.failed_at = time.monotonic()
            if bastion.error:
                raise _for_host(bastion.error, host, jumps[-1]) from bastion.error
            return bastion.line


def _for_host(error: HostError, host: str, bastion: Target) -> HostError:
    """Word the bastion's failure as this host's; hosts behind it fold into one message."""
    what = f"cannot be reached: its bastion {bastion.alias} {error.what}"
    worded = HostError(host, what, kind=error.kind, why=error.why, hint=error.hint)
    return OnlyOpenSSHError(error.needs, worded) if isinstance(error, OnlyOpenSSHError) else worded


class _Attempt:
    """One try to open a connection: its socket, its clock, its transport.

    What it raises is for `explain`; after `HungUp` another try is worth it.
    """

    def __init__(self, target: Target, deadline: Deadline, through: Line | None) -> None:
        self._target = target
        self._deadline = deadline
        self._through = through
        self._socket: socket.socket | paramiko.Channel | None = None
        self._transport: Transport | None = None

    def line(self, keyring: Keyring, known: KnownHosts) -> Line:
        """Connect and log in, from here or from the bastion."""
        connection = self._connection(keyring, known)
        try:
            connection.connect_kwargs["sock"] = self._reach()
            connection.open()
        except Exception as error:
            cause = self._cause(error)
            self._give_up(connection)
            raise cause from error
        transport: paramiko.Transport = connection.transport
        transport.set_keepalive(_KEEPALIVE)
        transport.sock.settimeout(_WAKE)
        transport.channel_timeout = _CHANNEL_TIMEOUT
        return Line(transport, partial(self._give_up, connection))

    def _connection(self, keyring: Keyring, known: KnownHosts) -> Any:
        """Make a fabric Connection that verifies, logs in and negotiates as we want it."""
        left = max(0.1, self._deadline.left)
        user_keys = self._target.algorithms.user_keys
        ruled_out = [name for name in _SIGNATURES if user_keys and name not in user_keys]
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
                "disabled_algorithms": {"pubkeys": ruled_out},
            },
        )
        connection.client.set_missing_host_key_policy(Policy(self._target, known))
        return connection

    def _reach(self) -> socket.socket | paramiko.Channel:
        """Return something connected to the target's SSH port."""
        target, through = self._target, self._through
        if through is None:
            self._socket = _tcp(target, self._deadline)
            return self._socket
        end, left = (target.hostname, target.port), max(0.1, self._deadline.left)
        try:
            self._socket = through.transport.open_channel("direct-tcpip", end, ("127.0.0.1", 0), timeout=left)
        except paramiko.SSHException as error:
            if through.transport.is_active() and self._deadline.over:
                raise TimeoutError(
                    f"{target.jumps[-1].alias} got no answer from it in {left:.0f} s"
                ) from error
            raise
        return self._socket

    def _give_up(self, connection: Any) -> None:
        """Close everything; a thread that reads is woken."""
        cut(self._socket)
        with contextlib.suppress(Exception):  # whatever state it is in, it is to go
            connection.client.close()
        if self._socket:
            self._socket.close()

    def _cause(self, error: Exception) -> Exception:
        """Return the error worth showing: paramiko words a time-out as something else."""
        if isinstance(error, (Beyond, HostKeyRefused)):
            return error
        if self._through and not self._through.transport.is_active():  # which a login takes for a refusal
            return HungUp("the connection to its bastion was lost")
        if isinstance(error, (LoginRefused, IncompatiblePeer)):
            return error
        if isinstance(error, ConnectionResetError):
            return HungUp("it reset the connection")
        late, seconds = self._deadline.over, self._deadline.seconds
        if self._transport is not None and not self._transport.remote_version:
            if "Indecipherable" in str(error):
                return NoBanner("what answers there speaks another protocol")
            hung_up = HungUp("it hung up before its banner")
            return NoBanner(f"no banner within {seconds:.0f} s") if late else hung_up
        if late and self._transport is not None:
            return TimeoutError(f"no key exchange or login within {seconds:.0f} s after its banner")
        return error

    def _make_transport(self, known: tuple[str, ...], sock: Any, **options: Any) -> paramiko.Transport:
        """Make a transport with our windows, our algorithms, and first the key types that can be checked."""
        transport = Transport(sock, default_window_size=_WINDOW, **options)
        self._transport = transport
        security = transport.get_security_options()
        types = [name for kind in known for name in _SIGNED_BY.get(kind, (kind,))]
        for ours, head, keyword, theirs in zip(
            ("kex", "ciphers", "digests", "key_types"),
            (_KEX, _CIPHERS, (), types),
            ALGORITHMS,
            self._target.algorithms,
            strict=False,
        ):
            allowed = [name for name in getattr(security, ours) if not theirs or name in theirs]
            if not allowed:
                raise Beyond(f"{keyword} in ssh_config")
            setattr(security, ours, tuple(sorted(allowed, key=[*head, *allowed].index)))
        return transport


def _tcp(target: Target, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers; raise the first address's error."""
    addresses = socket.getaddrinfo(target.hostname, target.port, target.family, socket.SOCK_STREAM)
    errors: list[OSError] = []
    for number, (family, kind, proto, _, address) in enumerate(addresses):
        remaining, further = deadline.left, len(addresses) - number
        share = remaining if further == 1 else max(remaining / further, min(remaining, _TRAILING))
        sock = socket.socket(family, kind, proto)
        try:
            if share <= 0:
                raise TimeoutError(f"connecting took more than {deadline.seconds:.0f} s")
            sock.settimeout(share)
            sock.connect(address)
            _tune(sock)
            return sock
        except OSError as error:
            sock.close()
            errors.append(error)
    raise errors[0]


def _tune(sock: socket.socket) -> None:
    """Have small messages leave at once, and a peer noticed that acknowledges our keepalives no more."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)
