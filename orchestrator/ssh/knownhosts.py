"""known_hosts as OpenSSH reads it: wildcards, negation, hashed names, ports, markers.

paramiko's loader fails whole on one marker line and knows no wildcards. Here a line that cannot
be read is passed over, and `@revoked` is honoured; `@cert-authority` is seen but cannot be used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from orchestrator.ssh.tokens import wildcards


class Trust(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"
    SHORT = "short"  # fewer bits than RequiredRSASize
    UNTOLD = "untold"  # RevokedHostKeys names a file that gives no answer


@dataclass(frozen=True)
class KnownKey:
    """One line that can be used: for hosts that match `patterns`, this key."""

    marker: str  # "", "@revoked" or "@cert-authority"
    patterns: tuple[str, ...]
    type: str
    blob: bytes
    where: str  # file:line

    def covers(self, name: str) -> bool:
        """Whether the line speaks of this name; a negated pattern that matches rules it out."""
        found = False
        for pattern in self.patterns:
            if pattern.startswith("!") and _matches(pattern[1:], name):
                return False
            found = found or _matches(pattern, name)
        return found


@dataclass(frozen=True)
class KeyVerdict:
    """What the files say of a key; `where` is the line to blame, if there is one."""

    trust: Trust
    where: str = ""
    authority: bool = False  # a certificate authority is trusted for the host


def parse(text: str, source: str = "known_hosts") -> tuple[KnownKey, ...]:
    """All lines that make sense; comments, blank and broken lines are passed over."""
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
    return KnownKey(marker, tuple(words[0].lower().split(",") if words[0][0] != "|" else [words[0]]),
                    words[1], blob, where)  # fmt: skip


def judge(known: Iterable[KnownKey], names: Sequence[str], blob: bytes) -> KeyVerdict:
    """Whether `blob` is the key of the host that has these names (the best first).

    A further name counts only when it agrees: as OpenSSH does, a key known for the plain name is
    good for `[name]:port`, and another key known for the plain name says nothing about that port.
    """
    known = list(known)
    for key in known:
        if key.marker == "@revoked" and key.blob == blob and any(key.covers(name) for name in names):
            return KeyVerdict(Trust.REVOKED, key.where)
    plain = [[key for key in known if not key.marker and key.covers(name)] for name in names]
    for keys in plain:
        for key in keys:
            if key.blob == blob:
                return KeyVerdict(Trust.KNOWN, key.where)
    if plain and plain[0]:
        same_type = [key for key in plain[0] if key.type == key_type(blob)]
        return KeyVerdict(Trust.CHANGED, (same_type or plain[0])[0].where)
    authority = any(key.marker == "@cert-authority" and key.covers(name) for key in known for name in names)
    return KeyVerdict(Trust.UNKNOWN, authority=authority)


def key_type(blob: bytes) -> str:
    length = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + length].decode("ascii", "replace")


def fingerprint(blob: bytes) -> str:
    """As ssh shows it: `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def line_for(name: str, blob: bytes, *, hashed: bool) -> str:
    """The line that makes the key known."""
    shown = _hash(name, os.urandom(20)) if hashed else name
    return f"{shown} {key_type(blob)} {base64.b64encode(blob).decode()}\n"


def load(files: Sequence[Path]) -> tuple[KnownKey, ...]:
    """The keys of all files that can be read."""
    keys: list[KnownKey] = []
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        keys += parse(text, str(file))
    return tuple(keys)


def remember(file: Path, line: str) -> None:
    """Append a line; the folder is made if it is missing."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600)
    with file.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(line.encode())


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        salt = _decode(pattern.split("|")[2]) if pattern.count("|") == 3 else None
        return salt is not None and hmac.compare_digest(_hash(name, salt), pattern)
    if "*" in pattern or "?" in pattern:
        return wildcards(pattern).fullmatch(name) is not None
    return pattern == name  # most are: every host asks about every line


def _hash(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
