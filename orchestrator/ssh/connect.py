"""Opening links with fabric and paramiko: with deadlines, and through bastions that hosts share."""

import contextlib
import encodings.idna  # noqa: F401 - if its file cannot be opened once, no name resolves any more
import errno
import logging
import shlex
import socket
import struct
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
from orchestrator.node.base.fault import exhausted, reason
from orchestrator.ssh import hostkeys
from orchestrator.ssh.hostkeys import Beyond, HostKeyRefused, KnownHosts, KnownKey, Policy, Trust, key_type
from orchestrator.ssh.keys import Keyring, Login, LoginRefused, Secrets
from orchestrator.ssh.link import SshLink, Transport
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.ssh.resolve import ALGORITHMS, Target, resolve
from orchestrator.text import some
from orchestrator.value import Value

# Without a handler Python prints paramiko's tracebacks on stderr; a debug log may still collect them.
_LOG = "orchestrate.paramiko"
logging.getLogger("orchestrate").addHandler(logging.NullHandler())

_WINDOW = 8 * 1024 * 1024  # bytes in flight per channel: 1 Gbit/s over 60 ms
_KEEPALIVE = 15
_WAKE = 5.0  # seconds between two checks for a due keepalive on an idle connection; paramiko: 0.1
_CHANNEL_TIMEOUT = 30.0
_AHEAD = 4096  # bytes to read at once; a blocked read keeps them allocated
_SILENCE = 60  # seconds of unacknowledged data after which the kernel drops the connection
# Cheapest for the CPU first; those that paramiko or the host lacks are left out.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")
_SIGNED_BY = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
_SIGNATURES: tuple[str, ...] = paramiko.Transport._preferred_pubkeys  # type: ignore[attr-defined]  # noqa: SLF001


class Deadline(Value):
    """When to give up, and the total time allowed."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def remaining(self) -> float:
        return self.began + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        return self.remaining < 0.05


class Line(Value):
    """An open, authenticated connection."""

    transport: paramiko.Transport
    hang_up: Callable[[], None]


class _Bastion(Struct):
    lock: threading.Lock = field(default_factory=threading.Lock)
    line: Line | None = None
    error: Exception | None = None
    failed_at: float = float("-inf")


class SshConnector:
    """Opens links over SSH. Thread-safe; one per orchestrate command."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._keyring = Keyring(secrets)
        self._known = KnownHosts()
        self._lock = threading.Lock()
        self._bastions: dict[Target, _Bastion] = {}

    def connect(self, host: Host, timeout: float) -> SshLink:
        """Connect and authenticate within `timeout` seconds; raise HostError."""
        deadline = Deadline(timeout)
        target = resolve(host)
        if target.beyond:
            raise explain(Beyond(f"{target.beyond} in ssh_config"), host.name, target)
        through = self._bastion(target.jump, host.name, deadline) if target.jump else None
        try:
            line = _Attempt(target, deadline, through).line(self._keyring, self._known)
        except Exception as error:
            raise explain(error, host.name, target) from error
        return SshLink(line.transport, partial(explain, host=host.name, target=target), line.hang_up)

    def close(self) -> None:
        """Close the connections to bastions and the sockets of agents."""
        with self._lock:
            bastions, self._bastions = list(self._bastions.values()), {}
        for bastion in bastions:
            if bastion.line:
                bastion.line.hang_up()
        self._keyring.close()

    def _bastion(self, bastion: Target, host: str, deadline: Deadline) -> Line:
        """Return the connection to a bastion, opened on first use and shared by all hosts behind it.

        A lost one is reopened. Raise HostError, described for the host behind it, so that equal errors fold.
        """
        started = time.monotonic()
        with self._lock:
            shared = self._bastions.setdefault(bastion, _Bastion())
        with shared.lock:
            if shared.line and shared.line.transport.is_active():
                return shared.line
            if shared.line:
                shared.line.hang_up()
            # Otherwise it failed while we waited for our turn.
            if shared.error is None or shared.failed_at < started:
                try:
                    shared.line = _Attempt(bastion, deadline).line(self._keyring, self._known)
                    shared.error = None
                    return shared.line
                except Exception as error:
                    shared.error, shared.failed_at = error, time.monotonic()
            worded = explain(shared.error, host, bastion)
            worded.what = f"cannot be reached: the bastion {bastion.alias} {worded.what}"
            # Enough logins were refused: OpenSSH must not try again for each host.
            if worded.kind == Trouble.AUTH:
                worded = HostError(host, worded.what, kind=worded.kind, why=worded.why, hint=worded.hint)
            raise worded from shared.error


class _Attempt:
    """One attempt to open a connection: its socket, its deadline, its transport.

    What it raises is for `explain`; after `HungUp` another attempt is worthwhile.
    """

    def __init__(self, target: Target, deadline: Deadline, through: Line | None = None) -> None:
        self._target = target
        self._deadline = deadline
        self._through = through
        self._socket: socket.socket | paramiko.Channel | None = None
        self._transport: Transport | None = None

    def line(self, keyring: Keyring, known_hosts: KnownHosts) -> Line:
        """Connect and log in, directly or through the bastion."""
        connection = self._connection(keyring, known_hosts)
        client: paramiko.SSHClient = connection.client  # all that is needed once it is open
        try:
            connection.connect_kwargs["sock"] = _ReadAhead(self._reach())
            connection.open()
        except Exception as error:
            cause = self._cause(error)
            self._give_up(client)
            raise cause from error
        transport: paramiko.Transport = connection.transport
        transport.set_keepalive(_KEEPALIVE)
        transport.sock.settimeout(_WAKE)
        transport.channel_timeout = _CHANNEL_TIMEOUT
        return Line(transport, partial(self._give_up, client))

    def _connection(self, keyring: Keyring, known_hosts: KnownHosts) -> Any:
        """Return a fabric Connection that verifies, logs in and negotiates as configured."""
        remaining, lines = max(0.1, self._deadline.remaining), known_hosts.lines_about(self._target)
        user_keys = self._target.algorithms[-1]
        ruled_out = [name for name in _SIGNATURES if user_keys and name not in user_keys]
        connection = fabric.Connection(
            self._target.hostname,
            user=self._target.user,
            port=self._target.port,
            # Neither ssh_config nor fabric's files apply: the target is already resolved. One configuration
            # for each: a connection writes to its configuration, which is empty for that moment.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=False,
            connect_kwargs={
                "auth_strategy": Login(self._target, keyring),
                "transport_factory": partial(self._make_transport, lines),
                "timeout": remaining,
                "banner_timeout": remaining,
                "auth_timeout": remaining,
                "channel_timeout": remaining,
                "disabled_algorithms": {"pubkeys": ruled_out},
            },
        )
        connection.client.set_log_channel(_LOG)
        connection.client.set_missing_host_key_policy(Policy(self._target, known_hosts, lines))
        return connection

    def _reach(self) -> socket.socket | paramiko.Channel:
        """Return a socket or channel connected to the target's SSH port."""
        target, through = self._target, self._through
        if through is None:
            self._socket = _tcp(target, self._deadline)
            return self._socket
        end, remaining = (target.hostname, target.port), max(0.1, self._deadline.remaining)
        try:
            self._socket = through.transport.open_channel(
                "direct-tcpip", end, ("127.0.0.1", 0), timeout=remaining
            )
        except paramiko.SSHException as error:
            if through.transport.is_active() and self._deadline.over:
                raise TimeoutError(
                    f"its bastion received no reply from it within {remaining:.0f} s"
                ) from error
            raise
        return self._socket

    def _give_up(self, client: paramiko.SSHClient) -> None:
        if self._socket:
            with contextlib.suppress(OSError, EOFError):  # closing does not wake a thread that reads it
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            client.close()
        if self._socket:
            self._socket.close()

    def _cause(self, error: Exception) -> Exception:
        """Return the error worth showing: paramiko reports a timeout as something else."""
        if isinstance(error, (Beyond, HostKeyRefused, RuntimeError)):  # the last one: no thread left here
            return error
        if self._through and not self._through.transport.is_active():  # which a login mistakes for a refusal
            return HungUp("the connection to its bastion was lost")
        if isinstance(error, (LoginRefused, IncompatiblePeer)):
            return error
        if isinstance(error, ConnectionResetError):
            return HungUp("it reset the connection")
        if isinstance(error, EOFError) and self._transport and self._transport.remote_version:
            return EOFError("after its banner, before the login was complete")
        late, seconds = self._deadline.over, self._deadline.seconds
        if self._transport is not None and not self._transport.remote_version:
            if "Indecipherable" in str(error):
                return NoBanner("the server there speaks another protocol")
            hung_up = HungUp("it closed the connection before its banner")
            return NoBanner(f"no banner within {seconds:.0f} s") if late else hung_up
        if late and self._transport is not None:
            return TimeoutError(f"no key exchange or login within {seconds:.0f} s after its banner")
        return error

    def _make_transport(self, keys: Sequence[KnownKey], sock: Any, **options: Any) -> paramiko.Transport:
        """Return a transport with our windows and algorithms, preferring key types that can be verified."""
        transport = Transport(sock, default_window_size=_WINDOW, **options)
        self._transport = transport
        security = transport.get_security_options()
        kinds = [key_type(key.blob) for key in keys]
        types = [name for kind in kinds for name in _SIGNED_BY.get(kind, (kind,))]
        ours_first = {"kex": _KEX, "ciphers": _CIPHERS, "digests": (), "key_types": types}
        configured = zip(ours_first.items(), ALGORITHMS, self._target.algorithms, strict=False)
        for (ours, head), keyword, theirs in configured:
            allowed = [name for name in getattr(security, ours) if not theirs or name in theirs]
            if not allowed:
                raise Beyond(f"{keyword} in ssh_config")
            setattr(security, ours, tuple(sorted(allowed, key=[*head, *allowed].index)))
        return transport


class _ReadAhead:
    """A socket for paramiko that reads a packet with one system call instead of four.

    paramiko reads the beginning of a packet first, and Python waits for data before each read with a timeout:
    the kernel's own timeouts need no such wait.
    """

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        self._socket = sock
        self._ahead = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float) -> None:
        if isinstance(self._socket, paramiko.Channel):
            self._socket.settimeout(seconds)
            return
        self._socket.settimeout(None)
        timeout = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, timeout)

    def recv(self, size: int) -> bytes:
        try:
            data = self._ahead or self._socket.recv(max(size, _AHEAD))
        except BlockingIOError:
            raise TimeoutError from None
        self._ahead = data[size:]
        return data[:size]


def _tcp(target: Target, deadline: Deadline) -> socket.socket:
    try:
        sock = socket.create_connection((target.hostname, target.port), max(0.1, deadline.remaining))
    except TimeoutError as error:
        raise SilentError(*error.args) from error
    # Small messages are sent at once; a peer that stops acknowledging keepalives is detected.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)
    return sock


# --- errors of fabric, paramiko and sockets as text: one table, the most specific first ---

E = TypeVar("E", bound=BaseException)


class SilentError(TimeoutError):
    """The address accepted no connection."""


class NoBanner(paramiko.SSHException):
    """The remote end responds, but not with SSH."""


class HungUp(NoBanner):
    """A server that closed the connection before its banner, as sshd does beyond MaxStartups."""


class Problem(NamedTuple):
    """The parts of an error; a `hint` of "" suggests a manual login."""

    kind: str
    what: str
    why: str
    hint: str = ""


Wording: TypeAlias = Callable[[E, Target], Problem]

# The host itself has replied, whatever leads to it.
_ITS_OWN = {Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN, Trouble.HOSTKEY_CHANGED}
_HERE = {*(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS), errno.EIO, errno.ENOSPC, errno.EDQUOT}
_NEEDS = {IncompatiblePeer: "algorithms of its server", LoginRefused: "its login"}  # that OpenSSH may make
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


def explain(error: BaseException, host: str, target: Target) -> HostError:
    """Return the error for users; `error` may be anything that connecting raised.

    It is an `OnlyOpenSSHError` if OpenSSH's client may succeed.
    """
    if isinstance(error, HostError):
        return error
    if exhausted(error) or getattr(error, "errno", None) in _HERE:
        return HereError(host, reason(error))
    unknown = Problem("internal", "could not be reached", f"{type(error).__name__}: {error}")
    matches = (wording(error, target) for kind, wording in TABLE if isinstance(error, kind))
    problem = next(matches, unknown)
    way = f" (through {target.jump.alias})" if target.jump and problem.kind not in _ITS_OWN else ""
    hint = problem.hint or f"`{target.by_hand}`"
    needs = error.needs if isinstance(error, Beyond) else _NEEDS.get(type(error), "")
    kind = OnlyOpenSSHError if needs else HostError
    worded = kind(host, problem.what, kind=problem.kind, why=problem.why + way, hint=hint)
    if isinstance(worded, OnlyOpenSSHError):
        worded.needs = needs
    return worded


def _plain(kind: str, what: str) -> Wording[BaseException]:
    """Return a text whose details are in the error."""
    return lambda error, _: Problem(kind, what, reason(error))


def _at_port(kind: str, what: str, more: str) -> Wording[BaseException]:
    """Return a text with the port, and more than a suggestion to log in manually."""
    return lambda error, target: Problem(
        kind, what, f"port {target.port}: {reason(error)}", f"`{target.by_hand}`; {more}"
    )


def _host_key(error: HostKeyRefused, target: Target) -> Problem:
    kind = hostkeys.key_type(error.blob)
    if error.trust is Trust.CHANGED:
        shown = f"{kind} key {hostkeys.fingerprint(error.blob)}"
        why = f"its {shown} differs from {error.where}: a reinstallation, or an attacker in between"
        known_hosts = error.where.rpartition(":")[0]
        forget = shlex.join(["ssh-keygen", "-R", target.key_names[0], "-f", known_hosts])
        hint = f"find out which; then: {forget}, and {target.by_hand}"
        return Problem(Trouble.HOSTKEY_CHANGED, "presented an unexpected host key", why, hint)
    # `ssh` shows the fingerprint: with it no two hosts could be folded into one message.
    trust = target.by_hand.replace("ssh ", "ssh -o StrictHostKeyChecking=accept-new ", 1)
    hint = f"compare the fingerprint in `{target.by_hand}`; or trust that machine as it is: `{trust} true`"
    why = f"its {kind} key is in no known_hosts file"
    return Problem(Trouble.HOSTKEY_UNKNOWN, "presented an unknown host key", why, hint)


def _login(error: LoginRefused, target: Target) -> Problem:
    user = f'user "{target.user}"'
    why = f"no key {'sufficed' if str(error) else 'was accepted'} for {user} (tried {some(error.offered, 4)})"
    parts = [why if error.offered else f"there was no key to offer for {user}"]
    parts += [f"{file.path} {file.problem}" for file in error.unusable[:4]]
    parts += filter(None, [str(error)])
    locked = next((file.path for file in error.unusable if file.locked), None)
    hint = f"`{target.by_hand}`, or set `user` and `identity` under [defaults]"
    hint = f"`{shlex.join(['ssh-add', str(locked)])}`" if locked else hint
    if not error.offered and not error.unusable and not str(error):
        port = [] if target.port == 22 else ["-p", str(target.port)]
        install = shlex.join(["ssh-copy-id", *port, f"{target.user}@{target.alias}"])
        hint = f"`ssh-keygen -t ed25519` makes a key, and `{install}` installs it; or set `identity`"
    return Problem(Trouble.AUTH, "refused the login", "; ".join(parts), hint)


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    if target.jump and error.code == 1:
        hint = "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"
        what = "may not be reached through the bastion"
        return Problem(Trouble.FORBIDDEN, what, f"the bastion forbids forwarding: {error.text}", hint)
    if target.jump and error.code == 2:
        why = f"the bastion could not connect: {error.text}"
        return Problem(Trouble.REFUSED, "cannot be reached from the bastion", why)
    why = f"it has too many sessions (MaxSessions) or processes (`ulimit -u`), or forbids them: {error.text}"
    return Problem("command", "did not open a channel", why)


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        return Problem(Trouble.NO_ROUTE, "cannot be reached", reason(error))
    if error.errno == errno.ETIMEDOUT:
        return _timeout(error, target)
    return Problem("system", "could not be reached", reason(error))


_LARGE = "if that stops halfway, large packets are lost on the way: lower the MTU (VPN, tunnel)"
_timeout = _at_port(Trouble.TIMEOUT, "did not answer in time", _LARGE)
_lost = _plain(Trouble.LOST, "closed the connection")
TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, _host_key),
    (LoginRefused, _login),
    (paramiko.AuthenticationException, _plain(Trouble.AUTH, "refused the login")),
    (HungUp, _at_port(Trouble.HUNG_UP, "closes every connection at once",
                      "check its log (MaxStartups? PerSourcePenalties? hosts.deny?)")),
    (NoBanner, _at_port("banner", "did not answer as an SSH server", "check `port`: sshd may use another")),
    (paramiko.ChannelException, _channel),
    (Beyond, _plain("config", "cannot be reached with the settings of ssh_config")),
    (IncompatiblePeer, _plain("algorithms", "has no SSH algorithm in common with this machine")),
    (paramiko.SSHException, _plain("protocol", "broke the SSH protocol")),
    (socket.gaierror, _plain("resolve", "could not be resolved")),
    (SilentError, _at_port(Trouble.TIMEOUT, "did not answer in time",
                      "check that the machine is on, the address is right, and no firewall drops the port")),
    (TimeoutError, _timeout),
    (ConnectionRefusedError, _at_port("refused", "refused the connection", "start sshd, or set `port`")),
    (ConnectionError, _lost),
    (OSError, _system),
    (EOFError, _lost),
)  # type: ignore[assignment]  # each wording takes the class beside it  # fmt: skip
