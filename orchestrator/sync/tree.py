"""Reading a source tree: every file once, into a manifest."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.sync import private, remarks, tarball
from orchestrator.sync.listing import CodeListing, list_files, unreadable
from orchestrator.sync.manifest import MOST_FILES, Entry, File, Manifest, Symlink, too_long
from orchestrator.sync.private import Reason

_KEPT = 16 * 1024 * 1024  # bytes of small files that are held as they were read: later edits change nothing
_PINNED = 256 * 1024 * 1024  # the same, of files that were seen to change
_ALONG = 64 * 1024  # bytes of files that go along with the question what is missing
_MOST_ALONG = 16
_HASHERS = 4  # hashlib lets go of the interpreter


@dataclass(frozen=True)
class Tree:
    """A source tree as it was when it was read; `root` still holds the files that are not in `kept`."""

    root: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()  # for the user: what was left out, or is very large
    kept: Mapping[str, bytes] = field(default_factory=dict)  # contents by path
    left_out: Mapping[str, Reason] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def files(self) -> int:
        return len(self.manifest.entries)

    @property
    def size(self) -> int:
        return self.manifest.size

    def stream(self, paths: Collection[str] | None = None) -> Iterable[bytes]:
        """The tree, or these of its files, as a tar stream; raise ChangedError when a file has changed."""
        if paths is None and self.size <= _KEPT:
            return self._packed
        wanted = None if paths is None else frozenset(paths)
        entries = (one for one in self.manifest.entries if wanted is None or one.path in wanted)
        return tarball.chunks(self.root, entries, self.kept)

    @cached_property
    def _packed(self) -> list[bytes]:
        return list(tarball.chunks(self.root, self.manifest.entries, self.kept))

    @cached_property
    def newest(self) -> bytes:
        """The small files that were changed last, which hosts will probably lack, as a tar stream."""
        room, chosen = _ALONG, list[File]()
        files = [one for one in self.manifest.entries if isinstance(one, File) and one.path in self.kept]
        for one in sorted(files, key=lambda file: file.changed, reverse=True)[:_MOST_ALONG]:
            room -= one.size
            if room < 0:
                break
            chosen.append(one)
        return b"".join(tarball.chunks(self.root, chosen, self.kept)) if chosen else b""

    def changed(self) -> list[str]:
        """The paths that are no longer what they were when the tree was read, of those that are not kept."""
        return [
            entry.path
            for entry in self.manifest.entries
            if entry.path not in self.kept and not _same(self.root, entry)
        ]


def read_tree(
    root: Path,
    ignore: Sequence[str] = (),
    own: Iterable[Path] = (),
    *,
    pinned: Collection[str] = (),
    listing: CodeListing | None = None,
) -> Tree:
    """The tree at `root`; raise UsageError for what cannot be read.

    `own` are folders of ours in it. The contents of `pinned`, which change all the time, are held. A
    `listing` of a moment ago saves another one; what has gone since is not part of the tree.
    """
    root = root.resolve()
    found = list_files(root, ignore, own) if listing is None else listing
    tree = _read(root, found, pinned)
    if found.paths and not tree.files and not any(os.path.lexists(root / path) for path in found.paths):
        raise UsageError(
            f"the code at {root} has been removed",
            why="it was there when the launch began, and is sent only after all hosts have answered",
            hint="launch it again, and leave the folder in place until `stage` is over",
        )
    return tree


def read_package(folder: Path) -> Tree:
    """A tree that holds one Python package, under its name."""
    folder = folder.resolve()
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _read(folder.parent, _all([path.relative_to(folder.parent).as_posix() for path in paths]))


def read_folder(folder: Path) -> Tree:
    """A tree of everything in a folder: what is left out elsewhere is part of a tree that was fetched."""
    folder = folder.resolve()
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return _read(folder, _all([path.relative_to(folder).as_posix() for path in paths]))


def _all(paths: list[str]) -> CodeListing:
    return CodeListing(paths, named=set(paths))


def _read(root: Path, listing: CodeListing, pinned: Collection[str] = ()) -> Tree:
    paths = listing.paths
    if len(paths) > MOST_FILES:
        raise _too_many(root, len(paths), f"at most {MOST_FILES:,} can be sent")
    reader = _Reader(root, listing.named, frozenset(pinned))
    with ThreadPoolExecutor(_HASHERS) as pool:
        entries = [entry for entry in pool.map(reader.entry, paths) if entry is not None]
    manifest = Manifest.of(entries)
    if why := too_long(manifest.as_json):
        raise _too_many(root, len(paths), why)
    left_out = {**listing.left_out, **dict.fromkeys(sorted(reader.keys), Reason.KEY)}
    notes = (
        *listing.notes,
        *remarks.special(sorted(reader.special)),
        *remarks.left_out(left_out),
        *remarks.quoted_keys(sorted(reader.quoted)),
        *remarks.weight(manifest),
        *remarks.sparse(manifest),
    )
    return Tree(root, manifest, notes, reader.kept, left_out)


def _too_many(root: Path, files: int, why: str) -> UsageError:
    hint = "list data and environments in .orchestrateignore"
    return UsageError(f"the code at {root} has {files:,} files", why=why, hint=hint)


class _Reader:
    """Reads the files of one tree, from several threads."""

    def __init__(self, root: Path, named: Collection[str], pinned: frozenset[str]) -> None:
        self._root = root
        self._named = named
        self._pinned = pinned
        self._lock = threading.Lock()
        self._room = {False: _KEPT, True: _PINNED}  # by whether a file is pinned
        self.kept: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.quoted: list[str] = []  # programs and pages with a key in them, which are sent
        self.special: list[str] = []

    def entry(self, path: str) -> Entry | None:
        """None for what is not sent: sockets, pipes, devices, keys, and what is gone by now."""
        full = self._root / path
        try:
            status = full.lstat()
            if stat.S_ISLNK(status.st_mode):
                return Symlink(path, os.readlink(full))
            if not stat.S_ISREG(status.st_mode):
                self.special.append(path)
                return None
            return self._file(path, full, status)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error

    def _file(self, path: str, full: Path, status: os.stat_result) -> File | None:
        keep = self._take(path, status.st_size)
        executable = bool(status.st_mode & 0o111)
        with full.open("rb") as stream:
            content = stream.read(status.st_size) if keep else stream.read(private.KEY_SIZE)
            if status.st_size <= private.KEY_SIZE and self._is_key(path, content):
                return None
            if keep:
                self.kept[path] = content
                digest = hashlib.sha256(content).hexdigest()
                return File(path, executable, digest, len(content), changed=status.st_mtime_ns)
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            # The size that was hashed: the file may grow while we read it.
            return File(path, executable, digest, stream.tell(), status.st_blocks * 512)

    def _take(self, path: str, size: int) -> bool:
        """Whether there is room to hold a file's content."""
        pinned = path in self._pinned
        with self._lock:
            if size > self._room[pinned]:
                return False
            self._room[pinned] -= size
            return True

    def _is_key(self, path: str, content: bytes) -> bool:
        if path in self._named or not private.holds_key(path, content):
            return False
        (self.quoted if private.is_text(path) else self.keys).append(path)
        return not private.is_text(path)


def _same(root: Path, entry: Entry) -> bool:
    try:
        status = (root / entry.path).lstat()
        if isinstance(entry, File) and status.st_size != entry.size:
            return False
        return _Reader(root, {entry.path}, frozenset()).entry(entry.path) == entry
    except Exception:  # gone, or no longer readable
        return False
