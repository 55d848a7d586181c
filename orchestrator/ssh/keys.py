"""Keys from files and from agents, each loaded once and shared by all connections; logging in with them."""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.message import Message

from orchestrator.ssh.resolve import Target, reason
from orchestrator.text import plain

Ask: TypeAlias = Callable[[str], str]  # a prompt -> what was typed, without echo

_AGENT_TIMEOUT = 60.0  # an agent may ask its owner to confirm
_MOST = 200  # characters of what a host says
_CERTIFIED = b"-cert-v01@openssh.com"


@dataclass(frozen=True)
class Secrets:
    """Answers that a person typed before the fan-out; handed on as data, never stored or shown."""

    passphrases: Mapping[str, str] = field(default_factory=dict, repr=False)  # path of the key -> passphrase
    masters: Path | None = None  # connections of OpenSSH that a person has logged in


@dataclass(frozen=True)
class Loaded:
    """A key that can sign, or why the file holds none: "is encrypted", "cannot be read: ..."."""

    path: Path
    key: paramiko.PKey | None
    problem: str = ""
    locked: bool = False  # a passphrase would help
    public: bytes | None = None
    needs: str = ""  # of OpenSSH, which could use it


def load(path: Path, passphrase: str | None = None) -> Loaded:
    """Load a private key; as for `ssh`, one that others can read is none."""
    public = _public_half(path) or _public_half(Path(f"{path}.pub"))
    try:
        about = path.stat()
        if about.st_uid == os.getuid() and about.st_mode & 0o077 and _public_half(path) is None:
            mode = f"{about.st_mode & 0o777:04o}"
            problem = f"can be read by others (mode {mode}), and is not used, as with ssh: chmod 600 {path}"
            return Loaded(path, None, problem, public=public)
        key = paramiko.PKey.from_path(path, passphrase.encode() if passphrase else None)  # type: ignore[arg-type]
    except OSError as error:
        return Loaded(path, None, f"cannot be read: {reason(error)}", public=public)
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography's word for it, and paramiko's
        return Loaded(path, None, "is encrypted", locked=True, public=public)
    except (paramiko.pkey.UnknownKeyType, paramiko.SSHException, UnsupportedAlgorithm):
        problem = "is of a type that only the ssh program can use"
        return Loaded(path, None, problem, public=public, needs=f"{path}")
    except Exception as error:  # anything, for a bad file
        problem = (
            "does not open with that passphrase" if passphrase else f"is no private key: {reason(error)}"
        )
        return Loaded(path, None, problem, locked=bool(passphrase), public=public)
    return Loaded(path, key, public=public or key.asbytes())


def _public_half(path: Path) -> bytes | None:
    """Return the key in a file that begins as `ssh-ed25519 AAAA...`; None for any other file."""
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
        self._files: dict[Path, Loaded] = {}
        self._agents: dict[str, SharedAgent | None] = {}

    def files(self, target: Target) -> list[Loaded]:
        """Return the identity files that exist, if only their public half; all hosts use the same objects."""
        paths = [path for path in dict.fromkeys(target.identities) if _is_there(path)]
        with self._lock:
            for path in paths:
                if path not in self._files:
                    self._files[path] = load(path, self._secrets.passphrases.get(str(path)))
            return [self._files[path] for path in paths]

    def agent_keys(self, address: str | None) -> tuple[paramiko.AgentKey, ...]:
        """Return the keys that the agent at this socket holds; nothing when there is no agent."""
        if address is None:
            return ()
        with self._lock:
            if address not in self._agents:
                self._agents[address] = _connect_agent(address)
            agent = self._agents[address]
        return tuple(agent.get_keys()) if agent else ()

    def offers(self, target: Target) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield keys with a person's names for them: chosen ones in the agent, chosen files, then others.

        Chosen files come before the agent's other keys, since a host hangs up after a few refusals.
        """
        held = [key for key in self.agent_keys(target.agent) if not _is_certificate(key)]
        files = self.files(target)
        chosen = {file.public for file in files if file.public}
        agents = {bytes(key.blob): (f"{key.comment or key.get_name()} (ssh-agent)", key) for key in held}
        loaded = [
            (str(file.path), file.key) for file in files if file.key and file.key.asbytes() not in agents
        ]
        yield from (offer for blob, offer in agents.items() if blob in chosen)
        if not target.default_identities:
            yield from loaded
        if not target.identities_only:
            yield from (offer for blob, offer in agents.items() if blob not in chosen)
        if target.default_identities:
            yield from loaded

    def needs(self, target: Target) -> str:
        """Return what OpenSSH may log in with that paramiko cannot; "" for nothing."""
        if any(_is_certificate(key) for key in self.agent_keys(target.agent)):
            return "a certificate in ssh-agent"
        return next((file.needs for file in self.files(target) if file.needs), "")

    def close(self) -> None:
        with self._lock:
            agents, self._agents = self._agents, {}
        for agent in agents.values():
            if agent:
                agent.close()


def _is_there(path: Path) -> bool:
    try:
        return path.is_file() or Path(f"{path}.pub").is_file()
    except OSError:  # in a folder that we may not look into
        return False


def _is_certificate(key: paramiko.AgentKey) -> bool:
    return _CERTIFIED in bytes(key.blob)[:60]


class SharedAgent(AgentSSH):
    """An agent's socket used by many transports: one request at a time."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._connect(connection)  # type: ignore[attr-defined]

    def _send_message(self, msg: Message | bytes) -> tuple[int, Message]:
        with self._turn:
            answer: tuple[int, Message] = super()._send_message(msg)  # type: ignore[misc]
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


class LoginRefused(paramiko.AuthenticationException):
    """The host took none of our keys: `offered` are their names, `unusable` the files that hold none."""

    def __init__(self, offered: list[str], unusable: list[Loaded], words: str, needs: str = "") -> None:
        super().__init__(words)
        self.offered = offered
        self.unusable = unusable
        self.needs = needs  # of OpenSSH, which may get in


class Login:
    """Authenticates one connection by keys; paramiko's client calls it an auth strategy."""

    def __init__(self, target: Target, keyring: Keyring) -> None:
        self._target = target
        self._keyring = keyring

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in or raise; `LoginRefused` when the host listened and said no to everything."""
        offered: list[str] = []
        allowed: list[str] = []
        words = ""
        for label, key in self._keyring.offers(self._target):
            offered.append(label)
            try:
                allowed = list(transport.auth_publickey(self._target.user, key))
                if not allowed:
                    return
                break  # the key was one of two factors
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
                break
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error):
                    raise TimeoutError("no answer to the login") from error
                if not transport.is_active():  # the host had enough
                    words = f"it hung up: {plain(getattr(transport, 'farewell', ''))[-_MOST:]}"
                    break
        if not offered:
            try:
                transport.auth_none(self._target.user)
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
            else:
                return
        if allowed and "publickey" not in allowed:
            words = f"it takes only {' or '.join(name[:100] for name in allowed[:8])}"
        held = {bytes(key.blob) for key in self._keyring.agent_keys(self._target.agent)}
        unusable = [
            file for file in self._keyring.files(self._target) if file.problem and file.public not in held
        ]
        needs = self._keyring.needs(self._target)
        if self._target.kerberos and any("gssapi" in name for name in allowed):
            needs = needs or "GSSAPIAuthentication in ssh_config"
        raise LoginRefused(offered, unusable, words, needs)
