"""The data of [data] on this machine: read once, into a manifest, a digest and the digests of its pieces.

All files, laid end to end in the order of their names, are one long text; a piece is a slice of it. What
was read is remembered by size and time of each file, so that only data that changed is read again.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from orchestrator.errors import ClusterError, OrchestrateError, UsageError
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, read_plain, write_atomically
from orchestrator.sync.manifest import MOST_FILES, File, Manifest, too_long

_SMALLEST = 4 << 20  # bytes of a piece
_LARGEST = 32 << 20
_PIECES = 4096  # as many as are handled with ease
_AHEAD = 4  # pieces that are hashed at once
_MOST_MEMORY = 64 << 20  # bytes of digests that are kept


@dataclass(frozen=True)
class DataPath:
    """A file or folder of this machine, and its name in the data folder of the nodes."""

    name: str  # "files/images", "tfds/mnist/3.0.1"
    path: Path
    executable: bool = False  # its files are programs


@dataclass(frozen=True)
class Dataset:
    """Everything that [data] names, as one folder with one digest."""

    files: tuple[File, ...]  # sorted by path
    paths: tuple[Path, ...]  # of each, here
    size: int  # bytes of a piece; the last one may be shorter
    digests: bytes  # of all pieces, one after the other
    digest: str
    _starts: tuple[int, ...] = field(repr=False, default=())

    @property
    def total(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def pieces(self) -> int:
        return len(self.digests) // 32

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """What a node is told: what a tree's manifest has, and sizes."""
        return [{**file.as_json(), "size": file.size} for file in self.files]

    def length(self, piece: int) -> int:
        return min(self.size, self.total - piece * self.size)

    def read(self, piece: int) -> bytes:
        """One piece; raise ClusterError when it is no longer what it was."""
        data = bytearray()
        start, end = piece * self.size, piece * self.size + self.length(piece)
        number = bisect.bisect_right(self._starts, start) - 1
        changed = self.paths[number]
        try:
            while start < end:
                at = start - self._starts[number]
                length = min(end - start, self.files[number].size - at)
                if length > 0:
                    changed = self.paths[number]
                    with changed.open("rb", buffering=0) as file:
                        file.seek(at)
                        data += file.read(length)
                    start += length
                number += 1
        except OSError as error:
            raise _changed(changed) from error
        if hashlib.sha256(data).digest() != self.digests[piece * 32 : piece * 32 + 32]:
            raise _changed(changed)
        return bytes(data)


def read_dataset(
    sources: Sequence[DataPath], cache: Path, on_bytes: Callable[[int, int], None] = lambda _done, _all: None
) -> Dataset:
    """Read what the sources name; raise UsageError for what is not there or cannot be read.

    `cache` is a folder where digests are kept. `on_bytes` is called with how much of all has been read.
    """
    found = sorted((entry for source in sources for entry in _walk(source)), key=lambda entry: entry.name)
    if not found:
        raise UsageError(
            "[data] names nothing but empty folders",
            why=", ".join(str(source.path) for source in sources),
            hint="name folders that hold the data",
        )
    if len(found) > MOST_FILES:
        raise _too_many(len(found), f"at most {MOST_FILES:,} can be sent")
    total = sum(entry.size for entry in found)
    size = min(_LARGEST, max(_SMALLEST, -(-total // _PIECES >> 20) << 20))
    key = hashlib.sha256(json.dumps([size, *(entry.identity for entry in found)]).encode()).hexdigest()[:32]
    known = _recall(cache / f"{key}.json", len(found), -(-total // size))
    if known is None:
        known = _hash(found, total, size, on_bytes)
        _remember(cache / f"{key}.json", known)
    shas, digests = known
    files = tuple(
        File(entry.name, entry.executable, sha, entry.size) for entry, sha in zip(found, shas, strict=True)
    )
    starts = tuple(accumulate((file.size for file in files), initial=0))[:-1]
    paths = tuple(entry.path for entry in found)
    dataset = Dataset(files, paths, size, digests, Manifest.of(files).digest, starts)
    if why := too_long(dataset.manifest):
        raise _too_many(len(found), why)
    return dataset


def _too_many(files: int, why: str) -> UsageError:
    return UsageError(
        f"[data] names {files:,} files", why=why, hint="pack them into larger files, as TFRecords"
    )


@dataclass(frozen=True)
class _Entry:
    name: str
    path: Path
    size: int
    executable: bool
    identity: tuple[str, str, int, int, int]


def _walk(source: DataPath) -> Iterator[_Entry]:
    """The files of a source; links are followed, since it is their content that tasks read."""
    if not os.path.lexists(source.path):
        raise UsageError(
            f"[data] names {source.path}, which is not there",
            hint="correct the path in hosts.toml; relative ones are meant beside it",
        )
    waiting: list[tuple[str, Path, tuple[tuple[int, int], ...]]] = [(source.name, source.path, ())]
    while waiting:
        name, path, above = waiting.pop()
        try:
            found = path.stat()
            if stat.S_ISDIR(found.st_mode):
                place = (found.st_dev, found.st_ino)
                if place in above:
                    raise UsageError(
                        f"{path} leads back to a folder that it is in", hint=f"`rm {shlex.quote(str(path))}`"
                    )
                waiting += [(f"{name}/{child}", path / child, (*above, place)) for child in os.listdir(path)]
            elif stat.S_ISREG(found.st_mode):
                name.encode()
                identity = (name, os.path.realpath(path), found.st_size, found.st_mtime_ns, found.st_ino)
                yield _Entry(name, path, found.st_size, source.executable, identity)
        except UnicodeEncodeError:
            raise UsageError(f"{name!a} is not UTF-8", hint="rename it, to send it as data") from None
        except OSError as error:
            raise _unreadable(path, error) from error


def _hash(
    found: Sequence[_Entry], total: int, size: int, on_bytes: Callable[[int, int], None]
) -> tuple[list[str], bytes]:
    """Each byte is read once, for its file's digest and for its piece's."""
    shas: list[str] = []
    digests: list[Future[bytes]] = []
    done = 0
    pending = bytearray()
    with ThreadPoolExecutor(2) as pool:

        def give(piece: bytes) -> None:
            digests.append(pool.submit(lambda: hashlib.sha256(piece).digest()))
            if len(digests) > _AHEAD:
                digests[-_AHEAD].result()

        for entry in found:
            whole = hashlib.sha256()
            left = entry.size
            try:
                with entry.path.open("rb", buffering=0) as file:
                    while left:
                        data = file.read(min(left, size - len(pending)))
                        if not data:
                            raise _changed(entry.path)
                        whole.update(data)
                        pending += data
                        left -= len(data)
                        if len(pending) == size:
                            give(bytes(pending))
                            pending.clear()
                            done += size
                            on_bytes(done, total)
            except OSError as error:
                raise _unreadable(entry.path, error) from error
            shas.append(whole.hexdigest())
        if pending:
            give(bytes(pending))
        return shas, b"".join(one.result() for one in digests)


def _recall(path: Path, files: int, pieces: int) -> tuple[list[str], bytes] | None:
    try:
        told = json.loads(read_plain(path, _MOST_MEMORY))
        shas, digests = [str(one) for one in told["files"]], bytes.fromhex(told["pieces"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return (shas, digests) if len(shas) == files and len(digests) == pieces * 32 else None


def _remember(path: Path, known: tuple[list[str], bytes]) -> None:
    text = json.dumps({"files": known[0], "pieces": known[1].hex()})
    try:
        make_folder(path.parent)
        write_atomically(path, text.encode())
    except OSError:
        pass  # it is read again the next time


def _unreadable(path: Path, error: OSError) -> OrchestrateError:
    if isinstance(error, FileNotFoundError):
        if not path.is_symlink():
            return _changed(path)
        return UsageError(
            f"{path} leads to {os.readlink(path)}, which is not there",
            why="links in [data] are followed, since it is their content that tasks read",
            hint=f"`rm {shlex.quote(str(path))}`, or bring what it leads to",
        )
    return UsageError(
        f"cannot read {path}, which is part of [data]",
        why=reason(error),
        hint="correct its permissions, or leave it out",
    )


def _changed(path: Path) -> ClusterError:
    return ClusterError(
        f"{path} changed while it was sent",
        why="it is part of [data], and not what was read a moment ago",
        hint="try again when nothing writes there",
    )
