"""Verifying the host by known_hosts, read as OpenSSH reads it: patterns, hashed names, ports, markers.

paramiko's loader fails whole on one marker line and knows no wildcards; it asks our policy about every key,
since its own store stays empty.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import paramiko

from orchestrator.ssh.resolve import Target

_NOT_PLAIN = re.compile(r"[*?!|]")


class Trust(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class KnownKey:
    """One line that can be used: for hosts that match `patterns`, this key."""

    marker: str  # "", "@revoked" or "@cert-authority"
    patterns: tuple[str, ...]
    type: str
    blob: bytes
    where: str  # file:line

    def covers(self, name: str) -> bool:
        """Return True when the line speaks of this name; a negated pattern that matches rules it out."""
        if any(pattern.startswith("!") and _matches(pattern[1:], name) for pattern in self.patterns):
            return False
        return any(_matches(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True)
class KeyVerdict:
    """A key's standing by the files; `where` is the line to blame, if there is one."""

    trust: Trust
    where: str = ""


class HostKeyRefused(paramiko.SSHException):
    """The host's key is not the one we know, or we know none."""

    def __init__(self, verdict: KeyVerdict, blob: bytes, target: Target, needs: str = "") -> None:
        super().__init__(f"host key {verdict.trust.value}")
        self.verdict = verdict
        self.blob = blob
        self.target = target  # a bastion of the host, perhaps
        self.needs = needs  # of OpenSSH, which may accept it


class KnownHosts:
    """The known_hosts files of all targets, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[Path, dict[str, list[KnownKey]]] = {}

    def lines_about(self, target: Target) -> list[KnownKey]:
        """Return the lines that speak of this target, by one of its names."""
        files, names = (*target.user_known_hosts, *target.global_known_hosts), target.key_names
        with self._lock:
            self._loaded.update((file, _by_name(load(file))) for file in files if file not in self._loaded)
            near = [
                key for file in files for name in (*names, "") for key in self._loaded[file].get(name, ())
            ]
        return [key for key in near if any(key.covers(name) for name in names)]

    def types(self, target: Target) -> tuple[str, ...]:
        """Return the types of the keys that are known for this target."""
        return tuple(dict.fromkeys(key.type for key in self.lines_about(target) if not key.marker))

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
                with file.open("a") as stream:
                    stream.write(
                        f"{end}{target.key_names[0]} {key_type(blob)} {base64.b64encode(blob).decode()}\n"
                    )
            self._loaded.pop(file, None)


def _by_name(keys: Iterable[KnownKey]) -> dict[str, list[KnownKey]]:
    """Return the lines by the names that they say; "" for those with patterns or hashes, which are asked."""
    table: dict[str, list[KnownKey]] = {}
    for key in keys:
        plain = not any(_NOT_PLAIN.search(pattern) for pattern in key.patterns)
        for name in key.patterns if plain else ("",):
            table.setdefault(name, []).append(key)
    return table


class Policy(paramiko.MissingHostKeyPolicy):
    """Accepts a known key, remembers a new one where the user asked for that, refuses the rest."""

    def __init__(self, target: Target, known: KnownHosts) -> None:
        self._target = target
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname  # our own names decide
        target, blob = self._target, key.asbytes()
        lines = self._known.lines_about(target)
        verdict = judge(lines, target.key_names, blob)
        authorities = [
            f"@cert-authority in {line.where}" for line in lines if line.marker == "@cert-authority"
        ]
        needs = "".join(authorities[:1])
        if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
            needs = f"RequiredRSASize {target.rsa_bits} in ssh_config"
        elif verdict.trust is Trust.KNOWN:
            return
        elif verdict.trust is Trust.UNKNOWN and not needs and target.accept_new:
            self._known.remember(target, blob)
            return
        raise HostKeyRefused(verdict, blob, target, needs)


def parse(text: str, source: str = "known_hosts") -> tuple[KnownKey, ...]:
    """Return all lines that make sense; comments, blank and broken lines are passed over."""
    lines = enumerate(text.split("\n"), start=1)
    keys = (_parse_line(line.split(), f"{source}:{number}") for number, line in lines)
    return tuple(key for key in keys if key is not None)


def _parse_line(words: list[str], where: str) -> KnownKey | None:
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or marker not in {"", "@revoked", "@cert-authority"} or words[0].startswith("#"):
        return None
    blob = _decode(words[2])
    # The blob says its own type first; a line that contradicts itself is a broken line.
    if not blob or key_type(blob) != words[1]:
        return None
    names = (words[0],) if words[0].startswith("|") else tuple(words[0].lower().split(","))
    return KnownKey(marker, names, words[1], blob, where)


def judge(known: Iterable[KnownKey], names: Sequence[str], blob: bytes) -> KeyVerdict:
    """Judge a key shown by the host that has these names (the best first).

    A further name counts only when it agrees: as OpenSSH does, a key known for the plain name is
    good for `[name]:port`, and another key known for the plain name says nothing about that port.
    """
    known = list(known)
    for key in known:
        if key.marker == "@revoked" and key.blob == blob and any(key.covers(name) for name in names):
            return KeyVerdict(Trust.REVOKED, key.where)
    plain = [[key for key in known if not key.marker and key.covers(name)] for name in names]
    for key in (key for keys in plain for key in keys):
        if key.blob == blob:
            return KeyVerdict(Trust.KNOWN, key.where)
    if plain and plain[0]:
        same_type = [key for key in plain[0] if key.type == key_type(blob)]
        return KeyVerdict(Trust.CHANGED, (same_type or plain[0])[0].where)
    return KeyVerdict(Trust.UNKNOWN)


def key_type(blob: bytes) -> str:
    length = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + length].decode("ascii", "replace")


def fingerprint(blob: bytes) -> str:
    """Return it as ssh shows it: `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def load(file: Path) -> tuple[KnownKey, ...]:
    """Return the keys of a file; none of one that cannot be read, or of a FIFO, which would be waited for."""
    try:
        return parse(file.read_bytes().decode("utf-8", "replace"), str(file)) if file.is_file() else ()
    except OSError:
        return ()


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        salt, digest = _hashed(pattern)
        return bool(salt) and hmac.digest(salt, name.encode(), "sha1") == digest
    if "*" in pattern or "?" in pattern:
        return _wildcards(pattern).fullmatch(name) is not None
    return pattern == name


@cache
def _hashed(pattern: str) -> tuple[bytes, bytes]:
    """Return the salt and the digest of `|1|salt|digest`; both empty for a broken one."""
    parts = [_decode(part) for part in pattern.split("|")[2:]]
    return (parts[0], parts[1]) if len(parts) == 2 else (b"", b"")


@cache
def _wildcards(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with * and ?: fnmatch would read [host]:port as a set of characters."""
    signs = {"*": ".*", "?": "."}
    return re.compile("".join(signs.get(char, re.escape(char)) for char in pattern), re.DOTALL)


def _decode(text: str) -> bytes:
    """Decode base64; b"" for what is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
