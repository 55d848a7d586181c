"""Code, data, wheels and backups of this machine, as they were when they were read, and their manifests."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.errors import ClusterError, UsageError
from orchestrator.node.base.fault import reason
from orchestrator.node.serve.frames import MAX_PAYLOAD
from orchestrator.node.stock.manifest import BLOB, Blob, Manifest, blobs_of
from orchestrator.plainfile import make_folder, read_plain, write_atomically
from orchestrator.sync import private
from orchestrator.sync.listing import CodeListing, list_files, unreadable
from orchestrator.sync.private import Reason

MOST_FILES = 100_000  # what one message to a node can name
_MOST_NAMED = MAX_PAYLOAD - (1 << 20)  # bytes of a manifest, which a few pieces accompany
_KEPT = 16 << 20  # bytes of small files that are held as they were read: later edits change nothing
_HASHERS = 4  # hashlib lets go of the interpreter
_MOST_MEMORY = 64 << 20  # bytes of digests that are kept


class ChangedError(ClusterError):
    """Files are no longer what they were when they were read; the same for every host."""

    def __init__(self, paths: Sequence[str], what: str = "the code") -> None:
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        is_code = what == "the code"
        super().__init__(
            f"{what} changed while it was sent",
            why=f"{', '.join(paths[:3])}{more}: not what was read a moment ago",
            hint="list what changes all the time in .orchestrateignore"
            if is_code
            else "try again when nothing writes there",
        )
        self.paths = tuple(paths)


@dataclass(frozen=True)
class DataPath:
    """A file or folder of this machine, and its name in the data folder of the nodes."""

    name: str  # "files/images", "tfds/mnist/3.0.1"
    path: Path
    executable: bool = False  # its files are programs


@dataclass(frozen=True)
class Contents:
    """A manifest, and where its files are on this machine."""

    manifest: Manifest
    paths: Sequence[Path]  # of each file
    root: Path | None = None  # of code: what rsync sends is below it
    kept: Mapping[int, bytes] = field(default_factory=dict)  # contents by the file's place
    notes: tuple[str, ...] = ()  # for the user: what was left out, or is very large
    left_out: Mapping[str, Reason] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        return self.manifest.digest

    @cached_property
    def encoded(self) -> bytes:
        """The manifest, as nodes read it."""
        return self.manifest.encode()

    @property
    def files(self) -> int:
        return len(self.manifest.rows)

    @property
    def size(self) -> int:
        return self.manifest.total

    def read(self, piece: int) -> bytes:
        """Read one piece; raise ChangedError when it is no longer what it was."""
        return b"".join(self._read(blob) for blob in self.manifest.pieces[piece])

    def changed(self) -> list[str]:
        """The paths that are no longer what they were when they were read, of those that are not kept."""
        changed: dict[str, None] = {}
        for number, file in enumerate(self.manifest.files):
            try:
                for blob in self.manifest.blobs(number) if number not in self.kept else ():
                    self._read(blob)
            except ChangedError:
                changed[file.path] = None
        return list(changed)

    def _read(self, blob: Blob) -> bytes:
        kept = self.kept.get(blob.file)
        if kept is not None:
            return kept[blob.at : blob.at + blob.size]
        try:
            with self.paths[blob.file].open("rb", buffering=0) as file:
                file.seek(blob.at)
                data = file.read(blob.size)
        except OSError:
            data = b""
        if hashlib.sha256(data).hexdigest() != self.manifest.sha256(blob):
            raise self._changed(blob.file)
        return data

    def _changed(self, number: int) -> ChangedError:
        if self.root is None:
            return ChangedError([str(self.paths[number])], "what is sent")
        return ChangedError([self.manifest.files[number].path])


# --- code ---


def read_tree(
    root: Path, ignore: Sequence[str] = (), own: Iterable[Path] = (), *, listing: CodeListing | None = None
) -> Contents:
    """Read the code at `root`; raise UsageError for what cannot be read.

    `own` are folders of ours in it. A `listing` of a moment ago saves another one; what has gone since is not
    part of the code.
    """
    root = root.resolve()
    files = list_files(root, ignore, own) if listing is None else listing
    tree = _read(root, files)
    if files.paths and not tree.files and not any(os.path.lexists(root / path) for path in files.paths):
        raise UsageError(
            f"the code at {root} has been removed",
            why="it was there when the launch began, and is sent only after all hosts have answered",
            hint="launch it again, and leave the folder in place until `stage` is over",
        )
    return tree


def read_folder(folder: Path) -> Contents:
    """Read everything in a folder: what is left out of code is part of what was fetched from a host."""
    folder = folder.resolve()
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return read_paths(folder, paths)


def read_paths(root: Path, paths: Iterable[Path]) -> Contents:
    """Read these files below `root`, whatever they hold."""
    names = [path.relative_to(root).as_posix() for path in paths]
    return _read(root, CodeListing(names, named=set(names)))


def _read(root: Path, listing: CodeListing) -> Contents:
    reader = _Reader(root, listing.named)
    subject, hint = f"the code at {root} has", "list data and environments in .orchestrateignore"
    _check_number(subject, len(listing.paths), hint)
    with ThreadPoolExecutor(_HASHERS) as pool:
        rows = [row for row in pool.map(reader.row, listing.paths) if row is not None]
    manifest = Manifest(sorted(rows, key=lambda row: str(row[0])))
    left_out = {**listing.left_out, **dict.fromkeys(sorted(reader.keys), Reason.KEY)}
    notes = (
        *listing.notes,
        *private.special(sorted(reader.special)),
        *private.remarks(left_out),
        *private.quoted_keys(sorted(reader.quoted)),
        *private.weight(manifest),
    )
    places = {file.path: number for number, file in enumerate(manifest.files)}
    kept = {places[path]: content for path, content in reader.kept.items()}
    made = Contents(manifest, [root / path for path in places], root, kept, notes, left_out)
    _check_length(subject, made, hint)
    return made


def _check_number(subject: str, files: int, hint: str) -> None:
    if files > MOST_FILES:
        raise UsageError(f"{subject} {files:,} files", why=f"at most {MOST_FILES:,} can be sent", hint=hint)


def _check_length(subject: str, made: Contents, hint: str) -> None:
    if (length := len(made.encoded)) > _MOST_NAMED:
        why = f"the list of their names has {length / 1e6:,.1f} MB, and may have {_MOST_NAMED / 1e6:,.1f}"
        raise UsageError(f"{subject} {made.files:,} files", why=why, hint=hint)


class _Reader:
    """Reads the files of one tree, from several threads."""

    def __init__(self, root: Path, named: Collection[str]) -> None:
        self._root = root
        self._named = named
        self._lock = threading.Lock()
        self._room = _KEPT
        self.kept: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.quoted: list[str] = []  # programs and pages with a key in them, which are sent
        self.special: list[str] = []

    def row(self, path: str) -> list[object] | None:
        """Make a row of the manifest; None for sockets, pipes, devices, keys, and what is gone by now."""
        full = self._root / path
        try:
            status = full.lstat()
            if stat.S_ISLNK(status.st_mode):
                return [path, os.readlink(full)]
            if not stat.S_ISREG(status.st_mode):
                self.special.append(path)
                return None
            return self._file(path, full, status)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error

    def _file(self, path: str, full: Path, status: os.stat_result) -> list[object] | None:
        with self._lock:
            keep = status.st_size <= self._room
            self._room -= status.st_size if keep else 0
        with full.open("rb", buffering=0) as file:
            content = file.read(status.st_size if keep else private.KEY_SIZE)
            is_small = status.st_size <= private.KEY_SIZE and path not in self._named
            if is_small and private.holds_key(path, content):
                (self.quoted if private.is_text(path) else self.keys).append(path)
                if not private.is_text(path):
                    return None
            if keep:
                self.kept[path] = content
            else:
                file.seek(0)
            stream = io.BytesIO(content) if keep else file
            digests, size = [], 0
            while data := stream.read(BLOB):  # the size that is hashed: it may grow while we read
                digests.append(hashlib.sha256(data).hexdigest())
                size += len(data)
        return [path, 0o755 if status.st_mode & 0o111 else 0o644, size, "".join(digests)]


# --- data ---


def read_data(
    sources: Sequence[DataPath], cache: Path, on_bytes: Callable[[int, int], None] = lambda _done, _all: None
) -> Contents:
    """Read what the sources name; raise UsageError for what is not there or cannot be read.

    `cache` is a folder where digests are kept by size and time of each file. `on_bytes` is called with how
    much of all has been read.
    """
    found = sorted((entry for source in sources for entry in _walk(source)), key=lambda entry: entry.name)
    if not found:
        raise UsageError(
            "[data] names nothing but empty folders",
            why=", ".join(str(source.path) for source in sources),
            hint="name folders that hold the data",
        )
    hint = "pack them into larger files, as TFRecords"
    _check_number("[data] names", len(found), hint)
    key = hashlib.sha256(json.dumps([BLOB, *(entry.identity for entry in found)]).encode()).hexdigest()[:32]
    memory = cache / f"{key}.json"
    digests = _recall(memory, len(found))
    if digests is None:
        digests = _hash(found, on_bytes)
        _remember(memory, digests)
    rows = [
        [entry.name, 0o755 if entry.executable else 0o644, entry.size, text]
        for entry, text in zip(found, digests, strict=True)
    ]
    made = Contents(Manifest(rows), [entry.path for entry in found])
    _check_length("[data] names", made, hint)
    return made


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


def _hash(found: Sequence[_Entry], on_bytes: Callable[[int, int], None]) -> list[str]:
    """The digests of the blobs of each file; each byte is read once."""
    total, done = sum(entry.size for entry in found), 0
    blobs = [(entry, at) for entry in found for at in blobs_of(entry.size)]
    digests: dict[str, list[str]] = {entry.name: [] for entry in found}
    with ThreadPoolExecutor(_HASHERS) as pool:
        for (entry, at), digest in zip(blobs, pool.map(_blob, blobs), strict=True):
            digests[entry.name].append(digest)
            done += min(BLOB, entry.size - at)
            on_bytes(done, total)
    return list(map("".join, digests.values()))


def _blob(place: tuple[_Entry, int]) -> str:
    entry, at = place
    try:
        with entry.path.open("rb", buffering=0) as file:
            file.seek(at)
            data = file.read(min(BLOB, entry.size - at))
    except OSError as error:
        raise _unreadable(entry.path, error) from error
    if len(data) != min(BLOB, entry.size - at):
        raise ChangedError([str(entry.path)], "part of [data]")
    return hashlib.sha256(data).hexdigest()


def _recall(path: Path, files: int) -> list[str] | None:
    try:
        told: Any = json.loads(read_plain(path, _MOST_MEMORY))
    except (OSError, ValueError, RecursionError):
        return None
    right = isinstance(told, list) and len(told) == files and all(isinstance(one, str) for one in told)
    return told if right else None


def _remember(path: Path, digests: list[str]) -> None:
    try:
        make_folder(path.parent)
        write_atomically(path, json.dumps(digests).encode())
    except OSError:
        pass  # it is read again the next time


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read {path}, which is part of [data]",
        why=f"{reason(error)}: {os.path.realpath(path)}",
        hint="correct it, or leave it out; links are followed, since it is their content that tasks read",
    )
