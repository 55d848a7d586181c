"""Opening links with fabric and paramiko: bounded, and through bastions that hosts share."""

from __future__ import annotations

import contextlib
import errno
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import fabric
import paramiko
from msgspec import Struct, field
from paramiko.ssh_exception import IncompatiblePeer

from orchestrator.errors import HereError, HostError, Trouble
from orchestrator.model import Host
from orchestrator.ssh import hostkeys
from orchestrator.ssh.hostkeys import Beyond, HostKeyRefused, KnownHosts, KnownKey, Policy, Trust, key_type
from orchestrator.ssh.keys import Keyring, Login, LoginRefused, Secrets
from orchestrator.ssh.link import SshLink, Transport
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.ssh.resolve import ALGORITHMS, Target, reason, resolve
from orchestrator.text import some

# Without a handler Python prints paramiko's tracebacks on stderr; a debug log may still collect them.
_LOG = "orchestrate.paramiko"
logging.getLogger("orchestrate").addHandler(logging.NullHandler())

_WINDOW = 8 * 1024 * 1024  # bytes in flight per channel: 1 Gbit/s over 60 ms
_KEEPALIVE = 15
_WAKE = 5.0  # how often an idle connection looks whether a keepalive is due; paramiko: 0.1
_CHANNEL_TIMEOUT = 30.0
_SILENCE = 60  # seconds of unanswered data after which the kernel gives the connection up
# Cheapest for the CPU first; what paramiko or the host does not have is left out.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")
_SIGNED_BY = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
_SIGNATURES: tuple[str, ...] = paramiko.Transport._preferred_pubkeys  # type: ignore[attr-defined]  # noqa: SLF001


class Deadline(Struct, frozen=True):
    """When to give up, and after how long that is."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        return self.left < 0.05


class Line(Struct, frozen=True):
    """An open, authenticated connection."""

    transport: paramiko.Transport
    hang_up: Callable[[], None]


class _Bastion(Struct):
    lock: threading.Lock = field(default_factory=threading.Lock)
    line: Line | None = None
    error: Exception | None = None
    failed_at: float = float("-inf")


class SshConnector:
    """Opens links over SSH. Thread-safe; one per command of ours."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._keyring = Keyring(secrets)
        self._known = KnownHosts()
        self._lock = threading.Lock()
        self._bastions: dict[Target, _Bastion] = {}

    def connect(self, host: Host, timeout: float) -> SshLink:
        """Connect and authenticate within `timeout` seconds; raise HostError."""
        began = time.monotonic()
        target = resolve(host)
        if target.beyond:
            raise explain(Beyond(f"{target.beyond} in ssh_config"), host.name, target)
        deadline = Deadline(timeout, began)
        through = self._bastion(target.jump, host.name, deadline) if target.jump else None
        try:
            line = _Attempt(target, deadline, through).line(self._keyring, self._known)
        except Exception as error:
            raise explain(error, host.name, target) from error
        return SshLink(line.transport, partial(explain, host=host.name, target=target), line.hang_up)

    def close(self) -> None:
        """Close the bastions' connections and the agents' sockets."""
        with self._lock:
            bastions, self._bastions = list(self._bastions.values()), {}
        for bastion in bastions:
            if bastion.line:
                bastion.line.hang_up()
        self._keyring.close()

    def _bastion(self, bastion: Target, host: str, deadline: Deadline) -> Line:
        """Return the connection to a bastion, opened by whoever comes first and shared by all hosts behind.

        One that is lost is opened again. Raise HostError, worded for the host behind it: those fold.
        """
        asked = time.monotonic()
        with self._lock:
            shared = self._bastions.setdefault(bastion, _Bastion())
        with shared.lock:
            if shared.line and shared.line.transport.is_active():
                return shared.line
            if shared.line:
                shared.line.hang_up()
            if (
                shared.error is None or shared.failed_at < asked
            ):  # else it failed while we waited for our turn
                try:
                    shared.line = _Attempt(bastion, deadline).line(self._keyring, self._known)
                    shared.error = None
                    return shared.line
                except Exception as error:
                    shared.error, shared.failed_at = error, time.monotonic()
            worded = explain(shared.error, host, bastion)
            worded.what = f"cannot be reached: its bastion {bastion.alias} {worded.what}"
            if worded.kind == Trouble.AUTH:  # enough logins were refused: OpenSSH is not to try for each host
                worded = HostError(host, worded.what, kind=worded.kind, why=worded.why, hint=worded.hint)
            raise worded from shared.error


class _Attempt:
    """One try to open a connection: its socket, its clock, its transport.

    What it raises is for `explain`; after `HungUp` another try is worth it.
    """

    def __init__(self, target: Target, deadline: Deadline, through: Line | None = None) -> None:
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
        left, lines = max(0.1, self._deadline.left), known.lines_about(self._target)
        user_keys = self._target.algorithms[-1]
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
                "transport_factory": partial(self._make_transport, lines),
                "timeout": left,
                "banner_timeout": left,
                "auth_timeout": left,
                "channel_timeout": left,
                "disabled_algorithms": {"pubkeys": ruled_out},
            },
        )
        connection.client.set_log_channel(_LOG)
        connection.client.set_missing_host_key_policy(Policy(self._target, known, lines))
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
                raise TimeoutError(f"its bastion got no answer from it in {left:.0f} s") from error
            raise
        return self._socket

    def _give_up(self, connection: Any) -> None:
        """Close everything, whatever state it is in."""
        if self._socket:
            with contextlib.suppress(OSError, EOFError):  # a close wakes no thread that reads it
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
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

    def _make_transport(self, known: Sequence[KnownKey], sock: Any, **options: Any) -> paramiko.Transport:
        """Make a transport with our windows, our algorithms, and first the key types that can be checked."""
        transport = Transport(sock, default_window_size=_WINDOW, **options)
        self._transport = transport
        security = transport.get_security_options()
        kinds = [key_type(key.blob) for key in known]
        types = [name for kind in kinds for name in _SIGNED_BY.get(kind, (kind,))]
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
    """Connect to the first address that answers."""
    try:
        sock = socket.create_connection((target.hostname, target.port), max(0.1, deadline.left))
    except TimeoutError as error:
        raise SilentError(*error.args) from error
    # Small messages leave at once; a peer that acknowledges our keepalives no more is noticed.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)
    return sock


# --- errors of fabric, paramiko and sockets, in words: one table, the most specific first ---

E = TypeVar("E", bound=BaseException)


class SilentError(TimeoutError):
    """The address took no connection."""


class NoBanner(paramiko.SSHException):
    """The far end answers, and does not speak SSH."""


class HungUp(NoBanner):
    """A server that closed the connection before its banner, as sshd does beyond MaxStartups."""


class Problem(NamedTuple):
    """The parts of an error; a `hint` of "" means to log in by hand and look."""

    kind: str
    what: str
    why: str
    hint: str = ""


Wording: TypeAlias = Callable[[E, Target], Problem]

# What the host itself has answered, whatever leads to it.
_ITS_OWN = {Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN, Trouble.HOSTKEY_CHANGED}
_HERE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


def explain(error: BaseException, host: str, target: Target) -> HostError:
    """Return the error a person reads; `error` may be anything that connecting raised.

    It is an `OnlyOpenSSHError` where OpenSSH's client may get in.
    """
    if isinstance(error, HostError):
        return error
    if isinstance(error, OSError) and error.errno in _HERE:
        return HereError(host, reason(error))
    unknown = Problem("internal", "could not be connected to", f"{type(error).__name__}: {error}")
    matches = (wording(error, target) for kind, wording in TABLE if isinstance(error, kind))
    problem = next(matches, unknown)
    way = f" (through {target.jump.alias})" if target.jump and problem.kind not in _ITS_OWN else ""
    hint = problem.hint or f"`{target.by_hand}`"
    worded = HostError(host, problem.what, kind=problem.kind, why=problem.why + way, hint=hint)
    match error:
        case Beyond():
            return OnlyOpenSSHError(error.needs, worded)
        case IncompatiblePeer():
            return OnlyOpenSSHError("algorithms of its server", worded)
        case LoginRefused():
            return OnlyOpenSSHError("its login", worded)
    return worded


def _plain(kind: str, what: str, hint: str = "") -> Wording[BaseException]:
    """Return a wording of which the error says why."""
    return lambda error, _: Problem(kind, what, reason(error), hint)


def _at_port(kind: str, what: str, more: str) -> Wording[BaseException]:
    """Return a wording with the port, and more than to log in by hand."""
    return lambda error, target: Problem(
        kind, what, f"port {target.port}: {reason(error)}", f"`{target.by_hand}`; {more}"
    )


def _host_key(error: HostKeyRefused, target: Target) -> Problem:
    kind = hostkeys.key_type(error.blob)
    if error.trust is Trust.CHANGED:
        shown = f"{kind} key {hostkeys.fingerprint(error.blob)}"
        why = f"its {shown} is not the one in {error.where}: it was installed anew, or somebody is in between"
        known_hosts = error.where.rpartition(":")[0]
        forget = shlex.join(["ssh-keygen", "-R", target.key_names[0], "-f", known_hosts])
        hint = f"find out which; then: {forget}, and {target.by_hand}"
        return Problem(Trouble.HOSTKEY_CHANGED, "shows another host key than the one we know", why, hint)
    # The fingerprint is for `ssh` to show: with it no two hosts would be told of together.
    trust = target.by_hand.replace("ssh ", "ssh -o StrictHostKeyChecking=accept-new ", 1)
    hint = f"compare the fingerprint in `{target.by_hand}`; or trust who answers now: `{trust} true`"
    why = f"its {kind} key is in no known_hosts file"
    return Problem(Trouble.HOSTKEY_UNKNOWN, "shows a host key that we do not know", why, hint)


def _login(error: LoginRefused, target: Target) -> Problem:
    user = f'user "{target.user}"'
    why = f"no key was accepted for {user} (tried {some(error.offered, 4)})"
    parts = [why if error.offered else f"there was no key to offer for {user}"]
    parts += [f"{file.path} {file.problem}" for file in error.unusable[:4]]
    parts += [str(error)] if str(error) else []
    locked = next((file.path for file in error.unusable if file.locked), None)
    hint = f"`{target.by_hand}`, or set `user` and `identity` under [defaults]"
    hint = f"`{shlex.join(['ssh-add', str(locked)])}`" if locked else hint
    if not error.offered and not error.unusable and not str(error):
        hint = f"`ssh-keygen -t ed25519` makes a key, and `{_copy_id(target)}` installs it; or set `identity`"
    return Problem(Trouble.AUTH, "refused the login", "; ".join(parts), hint)


def _copy_id(target: Target) -> str:
    port = [] if target.port == 22 else ["-p", str(target.port)]
    return shlex.join(["ssh-copy-id", *port, f"{target.user}@{target.alias}"])


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    if target.jump and error.code == 1:
        hint = "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"
        what = "may not be reached through its bastion"
        return Problem(Trouble.FORBIDDEN, what, f"the bastion forbids forwarding: {error.text}", hint)
    if target.jump and error.code == 2:
        why = f"the bastion could not connect: {error.text}"
        return Problem(Trouble.REFUSED, "cannot be reached from its bastion", why)
    why = f"it has too many sessions (MaxSessions) or forbids them: {error.text}"
    return Problem("command", "did not open a channel", why)


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        return Problem(Trouble.NO_ROUTE, "cannot be reached", reason(error))
    if error.errno == errno.ETIMEDOUT:
        return _timeout(error, target)
    return Problem("system", "could not be connected to", reason(error))


_LARGE = "if it stops in the middle, larger packets get lost on the way: lower the MTU (VPN, tunnel)"
_timeout = _at_port(Trouble.TIMEOUT, "did not answer in time", _LARGE)
_lost = _plain(Trouble.LOST, "closed the connection")
TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, _host_key),
    (LoginRefused, _login),
    (paramiko.AuthenticationException, _plain(Trouble.AUTH, "refused the login")),
    (HungUp, _at_port(Trouble.HUNG_UP, "hung up at once, every time",
                      "look into its log (MaxStartups? PerSourcePenalties? hosts.deny?)")),
    (NoBanner, _at_port("banner", "did not answer as an SSH server", "is `port` the one of its sshd?")),
    (paramiko.ChannelException, _channel),
    (Beyond, _plain("config", "cannot be connected to as ssh_config asks")),
    (IncompatiblePeer, _plain("algorithms", "has no algorithm in common with us")),
    (paramiko.SSHException, _plain("protocol", "broke the SSH protocol")),
    (socket.gaierror, _plain("resolve", "has a name that does not resolve")),
    (SilentError, _at_port(Trouble.TIMEOUT, "did not answer in time",
                      "is the machine on, is the address right, and does no firewall drop the port?")),
    (TimeoutError, _timeout),
    (ConnectionRefusedError, _at_port("refused", "refused the connection", "start sshd, or set `port`")),
    (ConnectionError, _lost),
    (OSError, _system),
    (EOFError, _lost),
)  # type: ignore[assignment]  # each wording takes the class beside it  # fmt: skip
