"""Verifying the host by known_hosts, read as OpenSSH reads it: patterns, hashed names, ports, markers.

paramiko's loader fails whole on one marker line and knows no wildcards; it asks our policy about every key,
since its own store stays empty.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import paramiko

from orchestrator.ssh.resolve import Strict, Target

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


class _Index:
    """Lines by the names that they say; only lines with patterns or hashes are asked one by one."""

    def __init__(self, keys: Sequence[KnownKey]) -> None:
        self._keys = keys
        self._by_name: dict[str, list[int]] = {}
        self._others: list[int] = []
        for number, key in enumerate(keys):
            if any(_NOT_PLAIN.search(pattern) for pattern in key.patterns):
                self._others.append(number)
            else:
                for name in key.patterns:
                    self._by_name.setdefault(name, []).append(number)

    def about(self, names: Sequence[str]) -> tuple[KnownKey, ...]:
        """Return the lines that speak of one of these names, in their order."""
        numbers = {number for name in names for number in self._by_name.get(name, ())}
        numbers.update(
            number for number in self._others if any(self._keys[number].covers(name) for name in names)
        )
        return tuple(self._keys[number] for number in sorted(numbers))


class KnownHosts:
    """The known_hosts files of all targets, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[Path, ...], _Index] = {}

    def lines_about(self, target: Target) -> tuple[KnownKey, ...]:
        """Return the lines that speak of this target, by one of its names."""
        files = (*target.user_known_hosts, *target.global_known_hosts)
        with self._lock:
            if files not in self._loaded:
                self._loaded[files] = _Index(load(files))
            return self._loaded[files].about(target.key_names)

    def types(self, target: Target) -> tuple[str, ...]:
        """Return the types of the keys that are known for this target."""
        return tuple(dict.fromkeys(key.type for key in self.lines_about(target) if not key.marker))

    def remember(self, target: Target, blob: bytes) -> None:
        """Write a new key to the first user file, as `accept-new` promises."""
        if not target.user_known_hosts:
            return
        name = target.key_names[0]
        shown = _hash(name, os.urandom(20)) if target.hash_known_hosts else name
        line = f"{shown} {key_type(blob)} {base64.b64encode(blob).decode()}\n"
        with self._lock:
            _append(target.user_known_hosts[0], line)
            self._loaded.clear()


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
        needs = next(
            (f"{line.marker} in {line.where}" for line in lines if line.marker == "@cert-authority"), ""
        )
        if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
            needs = f"RequiredRSASize {target.rsa_bits} in ssh_config"
        elif verdict.trust is Trust.KNOWN:
            return
        elif verdict.trust is Trust.UNKNOWN and not needs and target.strict is Strict.ACCEPT_NEW:
            self._known.remember(target, blob)
            return
        raise HostKeyRefused(verdict, blob, target, needs)


def parse(text: str, source: str = "known_hosts") -> tuple[KnownKey, ...]:
    """Return all lines that make sense; comments, blank and broken lines are passed over."""
    lines = enumerate(text.split("\n"), start=1)
    keys = (_parse_line(line.strip(), f"{source}:{number}") for number, line in lines)
    return tuple(key for key in keys if key is not None)


def _parse_line(line: str, where: str) -> KnownKey | None:
    if not line or line.startswith("#"):
        return None
    words = line.split()
    marker = words.pop(0) if words[0].startswith("@") else ""
    if len(words) < 3 or marker not in {"", "@revoked", "@cert-authority"}:
        return None
    blob = _decode(words[2])
    # The blob says its own type first; a line that contradicts itself is a broken line.
    own_type = len(words[1]).to_bytes(4, "big") + words[1].encode("utf-8", "replace")
    if blob is None or not blob.startswith(own_type):
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


def load(files: Sequence[Path]) -> tuple[KnownKey, ...]:
    """Return the keys of all files that can be read; a FIFO, which would be waited for, is none."""
    keys: list[KnownKey] = []
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8", "replace") if file.is_file() else ""
        except OSError:
            continue
        keys += parse(text, str(file))
    return tuple(keys)


def _append(file: Path, line: str) -> None:
    """Append a line; the folder is made if it is missing."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600)
    if not file.is_file():
        return  # /dev/null keeps nothing
    with file.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(line.encode())


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
    parts = [_decode(part) or b"" for part in pattern.split("|")[2:]]
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else (b"", b"")


@cache
def _wildcards(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with * and ?: fnmatch would read [host]:port as a set of characters."""
    signs = {"*": ".*", "?": "."}
    return re.compile("".join(signs.get(char, re.escape(char)) for char in pattern), re.DOTALL)


def _hash(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
