"""Manifests: what a folder consists of. Both ends of a connection read them with this code.

A row is [path, mode, size, digests] for a file, or [path, target] for a symbolic link, ordered by path. A
file is cut into blobs of BLOB bytes; `digests` are their sha256 as hexadecimal digits, concatenated. Pieces
are the unit of transfer: runs of blobs, so that small files travel together.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any, NamedTuple, Sequence

from ..base.fault import NodeError
from ..disk.below import parts_of

BLOB = 1 << 20
_HEX = 64  # digits of a digest
_LEAST = 16 << 10  # bytes up to which blobs share a piece of a small folder
_PIECES = 256  # number of pieces of a medium-sized folder


class File(NamedTuple):
    path: str
    mode: int
    size: int
    digests: str


class Blob(NamedTuple):
    file: int  # its place among the files
    at: int
    size: int


class Manifest:
    """The files and links of a folder; folders follow from their paths."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self.rows = rows
        self.files = [File(*row) for row in rows if len(row) == 4]
        self.links = {row[0]: row[1] for row in rows if len(row) == 2}
        self.total = sum(file.size for file in self.files)

    @cached_property
    def pieces(self) -> list[list[Blob]]:
        made: list[list[Blob]] = []
        most, room = max(_LEAST, min(BLOB, self.total // _PIECES)), 0
        for number in range(len(self.files)):
            for blob in self.blobs(number):
                if blob.size > room:
                    made.append([])
                    room = most
                made[-1].append(blob)
                room -= blob.size
        return made

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read what `encode` wrote; raise NodeError for names that are not below a folder."""
        rows = json.loads(data)
        for row in rows:
            parts_of(row[0])
        manifest = cls(rows)
        if any(len(file.digests) != digits(file.size) for file in manifest.files):
            raise NodeError("protocol", "a manifest with too few or too many digests")
        return manifest

    def encode(self) -> bytes:
        return json.dumps(self.rows, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """Return the folder's name: the same content, modes and paths have the same digest."""
        return hashlib.sha256(self.encode()).hexdigest()[:32]

    def blobs(self, number: int) -> list[Blob]:
        size = self.files[number].size
        return [Blob(number, at, min(BLOB, size - at)) for at in blobs_of(size)]

    def sha256(self, blob: Blob) -> str:
        start = blob.at // BLOB * _HEX
        return self.files[blob.file].digests[start : start + _HEX]

    def length(self, piece: int) -> int:
        return sum(blob.size for blob in self.pieces[piece])


def digits(size: int) -> int:
    """Return how many digits the digests of a file have."""
    return len(blobs_of(size)) * _HEX


def blobs_of(size: int) -> range:
    """Return the offsets of a file's blobs."""
    return range(0, size, BLOB)
