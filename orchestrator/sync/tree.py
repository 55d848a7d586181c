"""Reading a source tree: every file once, into a manifest."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.manifest import Entry, File, Manifest, Symlink
from orchestrator.sync import tarball
from orchestrator.sync.listing import list_files, unreadable

WARN_SIZE = 500 * 1000 * 1000
MOST_FILES = 100_000  # what one message to a node can name
_KEPT = 16 * 1024 * 1024  # a tree this small is packed once for all hosts
_HASHERS = 4  # hashlib lets go of the interpreter


@dataclass(frozen=True)
class Tree:
    """A source tree as it was when it was read; `root` still holds its files."""

    root: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()  # for the user: what was left out, or is very large

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def files(self) -> int:
        return len(self.manifest.entries)

    @property
    def size(self) -> int:
        return self.manifest.size

    def stream(self) -> Iterable[bytes]:
        """The tree as a tar stream in pieces; raise ClusterError when a file has changed."""
        return self._packed if self.size <= _KEPT else tarball.chunks(self.root, self.manifest)

    @cached_property
    def _packed(self) -> list[bytes]:
        return list(tarball.chunks(self.root, self.manifest))

    def changed(self) -> list[str]:
        """The paths that are no longer what they were when the tree was read."""
        return [entry.path for entry in self.manifest.entries if not _same(self.root, entry)]


def read_tree(root: Path, ignore: Sequence[str] = ()) -> Tree:
    """The tree at `root`; raise UsageError for what cannot be read."""
    root = root.resolve()
    listing = list_files(root, ignore)
    return _read(root, listing.paths, listing.notes)


def read_package(folder: Path) -> Tree:
    """A tree that holds one Python package, under its name."""
    folder = folder.resolve()
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _read(folder.parent, [path.relative_to(folder.parent).as_posix() for path in paths], [])


def read_folder(folder: Path) -> Tree:
    """A tree of everything in a folder: what is ignored elsewhere is part of a tree that was fetched."""
    folder = folder.resolve()
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return _read(folder, [path.relative_to(folder).as_posix() for path in paths], [])


def _read(root: Path, paths: Sequence[str], notes: list[str]) -> Tree:
    if len(paths) > MOST_FILES:
        raise UsageError(
            f"the code at {root} has {len(paths):,} files",
            why=f"at most {MOST_FILES:,} can be sent",
            hint="list data and environments in .orchestrateignore",
        )
    with ThreadPoolExecutor(_HASHERS) as pool:
        found = list(pool.map(lambda path: _entry(root, path), paths))
    special = [path for path, entry in zip(paths, found, strict=True) if entry is None]
    manifest = Manifest.of(entry for entry in found if entry is not None)
    return Tree(root, manifest, (*notes, *_about(special), *_weight(manifest)))


def _entry(root: Path, path: str) -> Entry | None:
    """None for what cannot be sent: sockets, pipes, devices."""
    full = root / path
    try:
        found = full.lstat()
        if stat.S_ISLNK(found.st_mode):
            return Symlink(path, os.readlink(full))
        if not stat.S_ISREG(found.st_mode):
            return None
        with full.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            # The size that was hashed: the file may grow while we read it.
            return File(path, bool(found.st_mode & 0o111), digest, stream.tell())
    except OSError as error:
        raise unreadable(path, error) from error


def _same(root: Path, entry: Entry) -> bool:
    try:
        found = (root / entry.path).lstat()
        if isinstance(entry, File) and found.st_size != entry.size:
            return False
        return _entry(root, entry.path) == entry
    except Exception:  # gone, or no longer readable
        return False


def _about(special: Sequence[str]) -> Iterator[str]:
    for path in special:
        yield f"{path} is no file (a socket, a pipe or a device) and was left out"


def _weight(manifest: Manifest) -> Iterator[str]:
    if manifest.size <= WARN_SIZE:
        return
    files = [entry for entry in manifest.entries if isinstance(entry, File)]
    largest = max(files, key=lambda entry: entry.size)
    yield (
        f"the code has {_megabytes(manifest.size)}, of which {largest.path} {_megabytes(largest.size)}: "
        "list data in .orchestrateignore and keep it on the hosts"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.0f} MB"
