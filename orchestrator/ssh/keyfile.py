"""Private key files: what can be told without the passphrase, and loading them."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import paramiko

from orchestrator.ssh.algorithms import CERTIFIED

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
class Sniffed:
    """A key file from outside: its type ("" when it is no key), its lock, its public half if it shows."""

    type: str
    encrypted: bool = False
    public: bytes | None = None


@dataclass(frozen=True)
class Loaded:
    """A key that can sign, or why the file holds none: "is encrypted", "cannot be read: ..."."""

    path: Path
    key: paramiko.PKey | None
    problem: str = ""
    locked: bool = False  # a passphrase would help
    public: bytes | None = None


def sniff(text: str) -> Sniffed:
    """What a key file shows to everybody who can read it."""
    match = _PEM.search(text)
    if match is None:
        return Sniffed("")
    label, body = match[1].strip(), match[2]
    if label != "OPENSSH":
        return Sniffed(label or "PKCS8", encrypted="ENCRYPTED" in label or "4,ENCRYPTED" in body)
    try:
        data = base64.b64decode("".join(body.split()))
        return _sniff_openssh(data)
    except (struct.error, ValueError):
        return Sniffed("")


def _sniff_openssh(data: bytes) -> Sniffed:
    if not data.startswith(_MAGIC):
        raise ValueError("not an OpenSSH key")
    cipher, rest = _string(data[len(_MAGIC) :])
    _, rest = _string(rest)  # kdf
    _, rest = _string(rest)  # its options
    public, _ = _string(rest[4:])  # after the number of keys
    return Sniffed(_string(public)[0].decode("ascii"), cipher != b"none", public)


def _string(data: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 4:
        raise ValueError("truncated")
    return data[4 : 4 + length], data[4 + length :]


def load(path: Path, passphrase: str | None = None, certificate: Path | None = None) -> Loaded:
    """Load a private key, with its certificate where `certificate` or `<path>-cert.pub` exists."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Loaded(path, None, f"cannot be read: {reason(error)}", public=_public_beside(path))
    seen = sniff(text)
    if not seen.type and (public := _public_line(text)):
        return Loaded(path, None, "is a public key, and no agent holds its private half", public=public)
    public = seen.public or _public_beside(path)
    if seen.encrypted and passphrase is None:
        return Loaded(path, None, "is encrypted", locked=True, public=public)
    kind = _CLASSES.get(seen.type)
    if kind is None:
        return Loaded(path, None, _unusable(seen.type, path), public=public)
    try:
        key = kind.from_private_key_file(str(path), passphrase)
    except Exception as error:  # paramiko and cryptography raise anything for a bad file
        if seen.encrypted:
            return Loaded(path, None, "does not open with that passphrase", locked=True, public=public)
        return Loaded(path, None, f"cannot be read: {reason(error)}", public=public)
    return Loaded(path, key, _add_certificate(key, certificate or Path(f"{path}-cert.pub")), public=public)


def _unusable(kind: str, path: Path) -> str:
    if kind.startswith("sk-"):
        return "is on a security key, which only the ssh program can use: put it into ssh-agent"
    if kind == "PKCS8" or "ENCRYPTED" in kind:
        return f"is in a format that is not OpenSSH's: convert it with ssh-keygen -p -f {path}"
    return f"is of a type that cannot be used ({kind})" if kind else "is not a private key"


def _add_certificate(key: paramiko.PKey, file: Path) -> str:
    if not file.is_file():
        return ""
    try:
        key.load_certificate(str(file))
    except Exception as error:
        return f"has a certificate that cannot be used ({file}: {reason(error)})"
    return ""


def _public_beside(path: Path) -> bytes | None:
    return public_in(Path(f"{path}.pub"))


def public_in(path: Path) -> bytes | None:
    """The public key or certificate in a file of one line."""
    try:
        return _public_line(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _public_line(text: str) -> bytes | None:
    try:
        kind, encoded = text.split()[:2]
        blob = base64.b64decode(encoded, validate=True)
        return blob if _string(blob)[0] == kind.encode() else None
    except (ValueError, struct.error):
        return None


_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2}  # of a public key, after its type; ecdsa has 2 too


def certified(blob: bytes) -> bytes | None:
    """The public key that a certificate speaks of; None for anything else."""
    try:
        kind, rest = _string(blob)
        name = kind.decode("ascii")
        if not name.endswith(CERTIFIED):
            return None
        plain = name.removesuffix(CERTIFIED)
        _, rest = _string(rest)  # a nonce
        parts = [plain.encode()]
        for _ in range(_FIELDS.get(plain, 2)):
            part, rest = _string(rest)
            parts.append(part)
    except (struct.error, ValueError):
        return None
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def reason(error: BaseException) -> str:
    """An exception in words: the system's text, else its own, else the name of its class."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
