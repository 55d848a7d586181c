"""Verifying hosts by known_hosts: names, hashed names and ports.

paramiko's loader fails completely on one line with a marker; it asks our policy about every key, because its
own store stays empty. Files with markers (@revoked, @cert-authority) or patterns are left to OpenSSH.
"""

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

from orchestrator.ranges import grouped
from orchestrator.ssh.resolve import Target, stamp
from orchestrator.value import Value

_SPECIAL = re.compile(r"@|[^\s|#]*[*?!]")  # the beginning of a line that only OpenSSH reads


class Beyond(paramiko.SSHException):
    """A connection that OpenSSH may make, and paramiko cannot: `needs` gives the reason."""

    def __init__(self, needs: str) -> None:
        super().__init__(f"only OpenSSH's own client can follow {needs}")
        self.needs = needs


class Trust(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"


class KnownKey(Value):
    """One line: the key of the host with this name, which may be hashed."""

    name: str
    blob: bytes
    where: str  # file:line

    def covers(self, name: str) -> bool:
        if not self.name.startswith("|"):
            return self.name == name
        salt, digest = _hashed(self.name)
        return bool(salt) and hmac.digest(salt, name.encode(), "sha1") == digest


class HostKeyRefused(paramiko.SSHException):
    """The host's key differs from the known one in line `where`; or none is known."""

    def __init__(self, trust: Trust, where: str, blob: bytes, target: Target) -> None:
        super().__init__(f"host key {trust.value}")
        self.trust = trust
        self.where = where
        self.blob = blob
        self.target = target  # possibly a bastion of the host


class KnownHosts:
    """The known_hosts files of all targets, each read again after a change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Each with its stamp; its keys by name, the hashed ones by "".
        self._loaded: dict[Path, tuple[list[int], dict[str, list[KnownKey]]]] = {}

    def lines_about(self, target: Target) -> list[KnownKey]:
        """Return the lines about this target under one of its names; raise Beyond."""
        files = (*target.user_known_hosts, *target.global_known_hosts)
        with self._lock:
            for file in files:
                now = stamp(str(file))
                if file not in self._loaded or (now and self._loaded[file][0] != now):
                    keys = (("" if key.name[0] == "|" else key.name, key) for key in load(file))
                    self._loaded[file] = now, grouped(keys)
            names = ("", *target.key_names)
            lines = [key for file in files for name in names for key in self._loaded[file][1].get(name, ())]
        return [key for key in lines if any(map(key.covers, target.key_names))]

    def remember(self, target: Target, blob: bytes) -> None:
        """Write a new key to the first user file, as `accept-new` requires; nothing for /dev/null."""
        if not target.user_known_hosts:
            return
        file = target.user_known_hosts[0]
        with self._lock:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            if file.is_file():
                text = file.read_bytes()
                end = "\n" if text and not text.endswith(b"\n") else ""
                line = f"{target.key_names[0]} {key_type(blob)} {base64.b64encode(blob).decode()}\n"
                if line.encode() not in text:  # another launch may have just written it
                    with file.open("a") as stream:
                        stream.write(end + line)
            self._loaded.pop(file, None)


@dataclass(frozen=True)
class Policy(paramiko.MissingHostKeyPolicy):
    """Accepts a known key, stores a new one if the user requested it, refuses the rest."""

    target: Target
    known_hosts: KnownHosts
    lines: Sequence[KnownKey]  # about the target

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname  # our own names decide
        target, blob = self.target, key.asbytes()
        trust, where = judge(self.lines, target.key_names[0], blob)
        if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
            raise Beyond(f"RequiredRSASize {target.rsa_bits} in ssh_config")
        if trust is Trust.UNKNOWN and target.accept_new:
            self.known_hosts.remember(target, blob)
        elif trust is not Trust.KNOWN:
            raise HostKeyRefused(trust, where, blob, target)


def judge(lines: Sequence[KnownKey], name: str, blob: bytes) -> tuple[Trust, str]:
    """Judge a key by the lines about its host, whose best name this is; also return the line to blame.

    A line for a further name counts only if it agrees: as in OpenSSH, a key known for the plain name is
    valid for `[name]:port`, while a different key known for the plain name says nothing about that port.
    """
    if any(key.blob == blob for key in lines):
        return Trust.KNOWN, ""
    others = [key for key in lines if key.covers(name)]
    others.sort(key=lambda key: key_type(key.blob) != key_type(blob))
    return (Trust.CHANGED, others[0].where) if others else (Trust.UNKNOWN, "")


def load(file: Path) -> list[KnownKey]:
    """Return the keys in a file; raise Beyond, or OSError, since its keys may contradict a new one.

    A file that may not be read has none, and neither has a FIFO, which would block. It skips invalid lines.
    """
    keys: list[KnownKey] = []
    try:
        text = file.read_bytes().decode("utf-8", "replace") if file.is_file() else ""
    except PermissionError:
        text = ""
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if _SPECIAL.match(line.strip()):
            raise Beyond(f"{fields[0][:40]} in {file}:{number}")
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        blob = _decode(fields[2])
        # The blob starts with its own type; a line that contradicts itself is invalid.
        if blob and key_type(blob) == fields[1]:
            names = [fields[0]] if fields[0].startswith("|") else fields[0].lower().split(",")
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
    """Return the salt and the digest of `|1|salt|digest`; both empty for an invalid one."""
    parts = [_decode(part) for part in name.split("|")[2:]]
    return (parts[0], parts[1]) if len(parts) == 2 else (b"", b"")


def _decode(text: str) -> bytes:
    """Decode base64; b"" for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
