"""Keys from files and from agents, each loaded once and shared by all connections; logging in with them."""

from __future__ import annotations

import base64
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import paramiko
from paramiko.agent import AgentSSH
from paramiko.message import Message

from orchestrator.ssh.resolve import Target, reason

Ask: TypeAlias = Callable[[str], str]  # a prompt -> what was typed, without echo

_AGENT_TIMEOUT = 60.0  # an agent may ask its owner to confirm
_CERTIFIED = "-cert-v01@openssh.com"
_MOST = 200  # characters of what a host says
_CLASSES: dict[str, type[paramiko.PKey]] = {
    "ssh-ed25519": paramiko.Ed25519Key,
    "ssh-rsa": paramiko.RSAKey,
    "ecdsa-sha2-nistp256": paramiko.ECDSAKey,
    "ecdsa-sha2-nistp384": paramiko.ECDSAKey,
    "ecdsa-sha2-nistp521": paramiko.ECDSAKey,
    "RSA": paramiko.RSAKey,
    "EC": paramiko.ECDSAKey,
}
_PEM = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(.*?)-----END", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"


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
    beside = _public_line(_text(Path(f"{path}.pub")))
    try:
        about = path.stat()
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Loaded(path, None, f"cannot be read: {reason(error)}", public=beside)
    kind, encrypted, public = sniff(text)
    if not kind and (public := _public_line(text)):
        return Loaded(path, None, "is a public key, and no agent holds its private half", public=public)
    public = public or beside
    if about.st_uid == os.getuid() and about.st_mode & 0o077:
        mode = f"{about.st_mode & 0o777:04o}"
        problem = f"can be read by others (mode {mode}), and is not used, as with ssh: chmod 600 {path}"
        return Loaded(path, None, problem, public=public)
    if kind not in _CLASSES:
        what = f"a key of type {kind}" if kind else ""
        problem = f"is {what}, which only the ssh program can use" if kind else "is not a private key"
        return Loaded(path, None, problem, public=public, needs=what and f"{path}, {what}")
    if encrypted and passphrase is None:
        return Loaded(path, None, "is encrypted", locked=True, public=public)
    needs = f"the certificate of {path}" if Path(f"{path}-cert.pub").is_file() else ""
    try:
        key = _CLASSES[kind].from_private_key_file(str(path), passphrase)
    except Exception as error:  # paramiko and cryptography raise anything for a bad file
        if encrypted:
            return Loaded(path, None, "does not open with that passphrase", locked=True, public=public)
        return Loaded(path, None, f"cannot be read: {reason(error)}", public=public)
    return Loaded(path, key, public=public, needs=needs)


def sniff(text: str) -> tuple[str, bool, bytes | None]:
    """Tell a key file's type ("" when it is no key), its lock, and its public half if that shows."""
    match = _PEM.search(text)
    if match is None:
        return "", False, None
    label, body = match[1].strip(), match[2]
    if label != "OPENSSH":
        return label or "PKCS8", "ENCRYPTED" in label or "4,ENCRYPTED" in body, None
    try:
        data = base64.b64decode("".join(body.split()))
        if not data.startswith(_MAGIC):
            return "", False, None
        cipher, rest = _string(data[len(_MAGIC) :])
        _, rest = _string(rest)  # kdf
        _, rest = _string(rest)  # its options
        public, _ = _string(rest[4:])  # after the number of keys
        return _string(public)[0].decode("ascii"), cipher != b"none", public
    except (struct.error, ValueError):
        return "", False, None


def _string(data: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 4:
        raise ValueError("truncated")
    return data[4 : 4 + length], data[4 + length :]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def _public_line(text: str) -> bytes | None:
    try:
        kind, encoded = text.split()[:2]
        blob = base64.b64decode(encoded, validate=True)
        return blob if _string(blob)[0] == kind.encode() else None
    except (ValueError, struct.error):
        return None


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
    return _CERTIFIED.encode() in bytes(key.blob)[:60]


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
    """Every key was tried; what was offered, what could not be, and what the host would take."""

    def __init__(
        self,
        offered: list[str],
        unusable: list[Loaded],
        allowed: list[str],
        ended: str | None = None,
        needs: str = "",
    ) -> None:
        super().__init__("no offer was accepted")
        self.offered = offered
        self.unusable = unusable
        self.allowed = allowed
        self.ended = ended  # what the host said as it ended the connection over it; None: it stayed
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
        for label, key in self._keyring.offers(self._target):
            offered.append(label)
            try:
                further = transport.auth_publickey(self._target.user, key)
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
                break
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error):
                    raise TimeoutError("no answer to the login") from error
                if not transport.is_active():  # the host had enough
                    raise self._refused(offered, allowed, ended=_last_words(transport)) from None
                continue
            if not further:
                return
            allowed = list(further)  # the key was one of two factors
            break
        if not offered:
            try:
                transport.auth_none(self._target.user)
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
            else:
                return
        raise self._refused(offered, allowed)

    def _refused(self, offered: list[str], allowed: list[str], ended: str | None = None) -> LoginRefused:
        held = {bytes(key.blob) for key in self._keyring.agent_keys(self._target.agent)}
        unusable = [file for file in self._keyring.files(self._target) if file.public not in held]
        needs = self._keyring.needs(self._target)
        if self._target.kerberos and any("gssapi" in name for name in allowed):
            needs = needs or "GSSAPIAuthentication in ssh_config"
        return LoginRefused(offered, [file for file in unusable if file.problem], allowed, ended, needs)


def _last_words(transport: paramiko.Transport) -> str:
    """Return what the host said as it hung up, else what it has people read at their login."""
    shown: bytes | None = getattr(transport.auth_handler, "banner", None)
    banner = (shown or b"").decode("utf-8", "replace")
    words = " ".join((getattr(transport, "farewell", "") or banner).split())
    return "".join(char if char.isprintable() else "?" for char in words[-_MOST:])
