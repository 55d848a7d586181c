"""Verifying the host by known_hosts: names, hashed names and ports.

paramiko's loader fails whole on one marker line; it asks our policy about every key, since its own store
stays empty. Files with markers (@revoked, @cert-authority) or patterns are OpenSSH's to read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import paramiko
from msgspec import Struct

from orchestrator.ssh.resolve import Target

_SPECIAL = re.compile(r"@|[^\s|#]*[*?!]")  # how a line begins that only OpenSSH reads


class Beyond(paramiko.SSHException):
    """A connection that OpenSSH may make, and paramiko cannot: `needs` says for what."""

    def __init__(self, needs: str) -> None:
        super().__init__(f"only OpenSSH's own client can follow {needs}")
        self.needs = needs


class Trust(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"


class KnownKey(Struct, frozen=True):
    """One line: for the host of this name, which may be hashed, this key."""

    name: str
    blob: bytes
    where: str  # file:line

    def covers(self, name: str) -> bool:
        if not self.name.startswith("|"):
            return self.name == name
        salt, digest = _hashed(self.name)
        return bool(salt) and hmac.digest(salt, name.encode(), "sha1") == digest


class HostKeyRefused(paramiko.SSHException):
    """The host's key is not the one we know, by the line `where`; or we know none."""

    def __init__(self, trust: Trust, where: str, blob: bytes, target: Target) -> None:
        super().__init__(f"host key {trust.value}")
        self.trust = trust
        self.where = where
        self.blob = blob
        self.target = target  # a bastion of the host, perhaps


class KnownHosts:
    """The known_hosts files of all targets, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[Path, list[KnownKey]] = {}

    def lines_about(self, target: Target) -> list[KnownKey]:
        """Return the lines that speak of this target, by one of its names; raise Beyond."""
        files = (*target.user_known_hosts, *target.global_known_hosts)
        with self._lock:
            for file in files:
                if file not in self._loaded:
                    self._loaded[file] = load(file)
            keys = [key for file in files for key in self._loaded[file]]
        return [key for key in keys if any(map(key.covers, target.key_names))]

    def remember(self, target: Target, blob: bytes) -> None:
        """Write a new key to the first user file, as `accept-new` promises; /dev/null keeps nothing."""
        if not target.user_known_hosts:
            return
        file = target.user_known_hosts[0]
        with self._lock:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            if file.is_file():
                end = "\n" if file.stat().st_size and not file.read_bytes().endswith(b"\n") else ""
                line = f"{target.key_names[0]} {key_type(blob)} {base64.b64encode(blob).decode()}\n"
                with file.open("a") as stream:
                    stream.write(end + line)
            self._loaded.pop(file, None)


@dataclass(frozen=True)
class Policy(paramiko.MissingHostKeyPolicy):
    """Accepts a known key, remembers a new one where the user asked for that, refuses the rest."""

    target: Target
    known: KnownHosts
    lines: Sequence[KnownKey]  # about the target

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname  # our own names decide
        target, blob = self.target, key.asbytes()
        trust, where = judge(self.lines, target.key_names[0], blob)
        if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
            raise Beyond(f"RequiredRSASize {target.rsa_bits} in ssh_config")
        if trust is Trust.UNKNOWN and target.accept_new:
            self.known.remember(target, blob)
        elif trust is not Trust.KNOWN:
            raise HostKeyRefused(trust, where, blob, target)


def judge(lines: Sequence[KnownKey], name: str, blob: bytes) -> tuple[Trust, str]:
    """Judge a key by the lines about its host, whose best name this is; return the line to blame, too.

    A line for a further name counts only when it agrees: as OpenSSH does, a key known for the plain name is
    good for `[name]:port`, and another key known for the plain name says nothing about that port.
    """
    if any(key.blob == blob for key in lines):
        return Trust.KNOWN, ""
    others = [key for key in lines if key.covers(name)]
    others.sort(key=lambda key: key_type(key.blob) != key_type(blob))
    return (Trust.CHANGED, others[0].where) if others else (Trust.UNKNOWN, "")


def load(file: Path) -> list[KnownKey]:
    """Return what the lines of a file say; raise Beyond.

    A file that cannot be read has none, nor has a FIFO, which would be waited for. Lines that make no sense
    are passed over.
    """
    keys: list[KnownKey] = []
    try:
        text = file.read_bytes().decode("utf-8", "replace") if file.is_file() else ""
    except OSError:
        text = ""
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if _SPECIAL.match(line.strip()):
            raise Beyond(f"{words[0][:40]} in {file}:{number}")
        if len(words) < 3 or words[0].startswith("#"):
            continue
        blob = _decode(words[2])
        # The blob says its own type first; a line that contradicts itself is a broken line.
        if blob and key_type(blob) == words[1]:
            names = [words[0]] if words[0].startswith("|") else words[0].lower().split(",")
            keys += [KnownKey(name, blob, f"{file}:{number}") for name in names]
    return keys


def key_type(blob: bytes) -> str:
    length = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + length].decode("ascii", "replace")


def fingerprint(blob: bytes) -> str:
    """Return it as ssh shows it: `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


@cache
def _hashed(name: str) -> tuple[bytes, bytes]:
    """Return the salt and the digest of `|1|salt|digest`; both empty for a broken one."""
    parts = [_decode(part) for part in name.split("|")[2:]]
    return (parts[0], parts[1]) if len(parts) == 2 else (b"", b"")


def _decode(text: str) -> bytes:
    """Decode base64; b"" for what is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
