"""Keys from files and agents, loaded once for all connections; their passphrases; logging in with them."""

import base64
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import paramiko
from paramiko.agent import AgentSSH
from paramiko.message import Message

from orchestrator.errors import ClusterError, HostError
from orchestrator.model import Host, Way
from orchestrator.node.base.fault import reason
from orchestrator.ssh.openssh import open_masters
from orchestrator.ssh.resolve import Target, resolve, stamp
from orchestrator.value import Value
from orchestrator.wire import printable

Ask: TypeAlias = Callable[[str], str]  # a prompt -> the input, without echo

_AGENT_TIMEOUT = 60.0  # an agent may ask its owner to confirm
_AGENT_AGAIN = 2.0  # seconds until one that failed is tried again: it may have been restarted
_TRIES = 3


@dataclass(frozen=True)
class Secrets:
    """Answers that a user gave before the fan-out; passed on as data, never stored or shown."""

    passphrases: Mapping[str, str] = field(default_factory=dict, repr=False)  # path of the key -> passphrase
    masters: Path | None = None  # OpenSSH connections that a user has logged in


class Loaded(Value):
    """Keys that can sign, or why the file contains none: "is encrypted", "is no private key: ..."."""

    path: Path
    key: paramiko.PKey | None
    public: bytes | None = None
    problem: str = ""
    locked: bool = False  # a passphrase would help


def load(path: Path, passphrase: str | None = None) -> Loaded:
    """Load a private key; like `ssh`, reject one that others can read."""
    public = _public_half(path) or _public_half(Path(f"{path}.pub"))
    try:
        about = path.stat()
        if about.st_uid == os.getuid() and about.st_mode & 0o077 and _public_half(path) is None:
            mode = f"{about.st_mode & 0o777:04o}"
            problem = f"can be read by others (mode {mode}), and is not used, as with ssh: chmod 600 {path}"
            return Loaded(path, None, public, problem)
        key = paramiko.PKey.from_path(path, passphrase.encode() if passphrase else None)  # type: ignore[arg-type]
    except (TypeError, paramiko.PasswordRequiredException):  # the terms of cryptography, and of paramiko
        return Loaded(path, None, public, "is encrypted", locked=True)
    except Exception as error:  # anything, for a bad file
        if passphrase and isinstance(error, ValueError):
            return Loaded(path, None, public, "does not open with that passphrase", locked=True)
        return Loaded(path, None, public, f"is not a usable private key: {reason(error)}")
    return Loaded(path, key, public or key.asbytes())


def _public_half(path: Path) -> bytes | None:
    """Return the key in a file that begins with `ssh-ed25519 AAAA...`; None for any other file."""
    try:
        kind, encoded = path.read_text(encoding="utf-8", errors="replace").split()[:2]
        blob = base64.b64decode(encoded, validate=True)
    except (OSError, ValueError):
        return None
    return blob if blob[4 : 4 + int.from_bytes(blob[:4], "big")] == kind.encode() else None


class Keyring:
    """Key files by path and agents by socket. Thread-safe."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._secrets = secrets or Secrets()
        self._lock = threading.Lock()
        self._files: dict[Path, tuple[list[int], Loaded]] = {}  # each with its stamp
        self._agents: dict[str, tuple[SharedAgent | None, float]] = {}  # each with the time of the last try

    def files(self, target: Target) -> list[Loaded]:
        """Return the existing identity files, even with only a public half; hosts share the objects."""
        with self._lock:
            for path in target.identities:
                now = stamp(str(path))
                if path in self._files and (not now or self._files[path][0] == now):
                    continue
                if os.path.isfile(path) or os.path.isfile(f"{path}.pub"):  # noqa: PTH113 - False, too, in a folder that we may not look into
                    self._files[path] = now, load(path, self._secrets.passphrases.get(str(path)))
            return [self._files[path][1] for path in dict.fromkeys(target.identities) if path in self._files]

    def agent_keys(self, target: Target) -> Mapping[bytes, paramiko.AgentKey]:
        """Return the keys in the target's agent, by their public half."""
        if target.agent is None:
            return {}
        with self._lock:
            agent, tried = self._agents.get(target.agent, (None, -_AGENT_AGAIN))
            if (agent is None or agent.lost) and time.monotonic() - tried >= _AGENT_AGAIN:
                if agent:
                    agent.close()
                agent = _connect_agent(target.agent)
                self._agents[target.agent] = agent, time.monotonic()
        return {} if agent is None or agent.lost else {bytes(key.blob): key for key in agent.get_keys()}

    def unusable(self, target: Target) -> list[Loaded]:
        """Return the files without a usable key that the agent does not hold either."""
        held = self.agent_keys(target)
        return [file for file in self.files(target) if file.problem and file.public not in held]

    def offers(self, target: Target) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield keys with names for users: chosen ones in the agent, files, the agent's others.

        Files come before the agent's other keys, because a host hangs up after a few refusals.
        """
        held, files = self.agent_keys(target), self.files(target)
        chosen = {file.public for file in files}
        named = {blob: (f"{key.comment or key.get_name()} (ssh-agent)", key) for blob, key in held.items()}
        yield from (offer for blob, offer in named.items() if blob in chosen)
        yield from ((str(file.path), file.key) for file in files if file.key and file.public not in held)
        if not target.identities_only:
            yield from (offer for blob, offer in named.items() if blob not in chosen)

    def close(self) -> None:
        with self._lock:
            agents, self._agents = self._agents, {}
        for agent, _ in agents.values():
            if agent:
                agent.close()


class SharedAgent(AgentSSH):
    """An agent's socket used by many transports: one request at a time; `lost` when it has failed."""

    lost = False

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._connect(connection)  # type: ignore[attr-defined]

    def _send_message(self, msg: Message | bytes) -> tuple[int, Message]:
        with self._turn:
            try:
                answer: tuple[int, Message] = super()._send_message(msg)  # type: ignore[misc]
            except (OSError, paramiko.SSHException):
                self.lost = True
                raise
            return answer

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _connect_agent(address: str) -> SharedAgent | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_AGENT_TIMEOUT)
    try:
        connection.connect(address)
        return SharedAgent(connection)
    except (OSError, paramiko.SSHException):
        connection.close()
        return None


# --- before the fan-out: the user is prompted once for each passphrase ---


def prepare(
    hosts: Sequence[Host], ask: Ask, *, tell: Callable[[str], None] = lambda _: None, masters: bool = True
) -> Secrets:
    """Ask for the passphrases these hosts need; with `masters` OpenSSH asks for the hosts that it handles.

    No passphrase is asked for a key in the agent, nor for one of ssh's default keys while another key can be
    offered. An entry that cannot be resolved is left for `connect` to report.
    """

    def target_of(host: Host) -> Target | None:
        try:
            return resolve(host)
        except HostError:
            return None

    over_ssh = [host for host in hosts if host.via in (Way.AUTO, Way.PARAMIKO, Way.OPENSSH)]
    ours: dict[Target, None] = {}
    by_openssh: list[Host] = []
    with ThreadPoolExecutor(8) as pool:
        for host, target in zip(over_ssh, pool.map(target_of, over_ssh), strict=True):
            if target and (host.via is Way.OPENSSH or (host.via is Way.AUTO and target.beyond)):
                by_openssh.append(host)
            elif target:
                ours.update({part: None for part in (target.jump, target) if part})
    opened = open_masters(by_openssh, tell) if by_openssh and masters else None
    passphrases = {str(path): _passphrase(path, ask) for path in _locked(ours)}
    return Secrets(passphrases, opened)


def _locked(targets: Iterable[Target]) -> list[Path]:
    """Return the key files whose passphrase is needed."""
    keyring, needed = Keyring(), dict[Path, None]()
    try:
        for target in targets:
            if not target.default_identities or not any(True for _ in keyring.offers(target)):
                needed.update({file.path: None for file in keyring.unusable(target) if file.locked})
    finally:
        keyring.close()
    return list(needed)


def _passphrase(path: Path, ask: Ask) -> str:
    for attempt in range(_TRIES):
        again = "That did not open it. " if attempt else ""
        passphrase = ask(f"{again}Passphrase for {path}: ")
        if not load(path, passphrase).locked:
            return passphrase
    command = shlex.join(["ssh-keygen", "-y", "-f", str(path)])
    raise ClusterError(
        f"{path} stays locked",
        why=f"{_TRIES} passphrases did not open it",
        hint=f"`{command}` asks for it, too, and prints the public key; or name another key with `identity`",
    )


# --- logging in ---


class LoginRefused(paramiko.AuthenticationException):
    """The host accepted none of our keys: `offered` are their names, `unusable` the files without one."""

    def __init__(self, offered: list[str], unusable: list[Loaded], message: str) -> None:
        super().__init__(message)
        self.offered = offered
        self.unusable = unusable


class Login(Value):
    """Authenticates one connection by keys; paramiko's client calls it an auth strategy."""

    target: Target
    keyring: Keyring

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in or raise; `LoginRefused` if the host refused everything."""
        offered: list[str] = []
        allowed: list[str] = []
        message = ""
        for label, key in self.keyring.offers(self.target):
            offered.append(label)
            try:
                allowed = list(transport.auth_publickey(self.target.user, key))
                if not allowed:
                    return
                break  # the key was one of two factors
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
                break
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error):
                    raise TimeoutError("no answer to the login") from error
                if not transport.is_active():  # the host limits the number of attempts, or PAM has a reason
                    banner = getattr(transport.auth_handler, "banner", None) or b""
                    text = printable(" ".join(banner.decode("utf-8", "replace").split()), 200)
                    message = f"it closed the connection{': ' * bool(text)}{text}"
                    break
        if not offered:
            try:
                transport.auth_none(self.target.user)
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
            else:
                return
        if allowed and "publickey" not in allowed:
            message = f'it asks for {" or ".join(allowed)[:200]}; `via = "openssh"` lets ssh prompt for it'
        raise LoginRefused(offered, self.keyring.unusable(self.target), message)
