"""What a source tree consists of, and its name: the digest of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from orchestrator.node.serve.frames import MAX_HEADER

MOST_FILES = 100_000  # what one message to a node can name
_LARGE = 1 << 20
MOST_NAMED = MAX_HEADER - (64 << 10)  # bytes of a manifest; the rest of the message that has it is short


@dataclass(frozen=True)
class File:
    path: str  # relative, with slashes; bytes that are no UTF-8 as surrogates
    executable: bool
    sha256: str
    size: int  # for progress; not part of what a tree is
    stored: int = field(default=-1, compare=False)  # bytes on the disk; less than `size`: it has holes
    changed: int = field(default=0, compare=False)  # when, ns of the Unix epoch: tells what is new

    @property
    def sparse(self) -> bool:
        """Whether most of a large file is holes."""
        return self.size > _LARGE and 0 <= self.stored < self.size // 2

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "mode": 0o755 if self.executable else 0o644, "sha256": self.sha256}


@dataclass(frozen=True)
class Symlink:
    path: str
    target: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "link": self.target}


Entry: TypeAlias = File | Symlink


@dataclass(frozen=True)
class Manifest:
    """The entries of a tree, sorted by path; folders are where files are."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Manifest:
        return cls(tuple(sorted(entries, key=lambda entry: entry.path)))

    @cached_property
    def as_json(self) -> list[dict[str, Any]]:
        """What the node verifies an incoming tree against."""
        return [entry.as_json() for entry in self.entries]

    @cached_property
    def digest(self) -> str:
        """The tree's name: the same content, modes and paths have the same one."""
        canonical = json.dumps(self.as_json, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries if isinstance(entry, File))


def too_long(manifest: list[dict[str, Any]]) -> str:
    """Why no message to a node can name all of these files; empty where one can."""
    length = len(json.dumps(manifest, separators=(",", ":")))
    if length <= MOST_NAMED:
        return ""
    return f"the list of their names has {length / 1e6:,.1f} MB, and may have {MOST_NAMED / 1e6:,.1f}"
