"""Code, data, wheels and backups on this machine, as they were when they were read, and their manifests."""

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import NoReturn

import msgspec

import orchestrator
from orchestrator.errors import ClusterError, HelpRequested, UsageError
from orchestrator.node.base.fault import reason
from orchestrator.node.serve.frames import MAX_PAYLOAD
from orchestrator.node.stock.manifest import BLOB, Blob, Manifest, blobs_of, digits
from orchestrator.plainfile import cache, make_folder, read_plain, write_atomically
from orchestrator.sync import private
from orchestrator.sync.listing import MOST_FILES, CodeListing, CodeRoot, reading
from orchestrator.sync.private import Reason
from orchestrator.text import some
from orchestrator.value import Value

_MOST_NAMED = MAX_PAYLOAD - (1 << 20)  # bytes of a manifest, which is sent along with a few pieces
_SMALL = 1 << 20  # bytes of a file that is searched for a key, and kept in memory while there is room:
_KEPT = 16 << 20  # later edits of it have no effect
_HASHERS = 4  # hashlib releases the interpreter lock
_PARTS = 1024
_MOST_MEMORY = 64 << 20  # bytes of digests that are stored


class ChangedError(ClusterError):
    """Files changed, or became unreadable, after they were read; the same error for every host."""

    def __init__(self, paths: Sequence[str], why: str = "") -> None:
        super().__init__(
            f"{some(paths, 3)} {'cannot be read again' if why else 'changed'} while it was sent",
            why=why or "it is not what was read a moment ago",
            hint="list what changes all the time in .orchestrateignore; send data when nobody writes it",
        )
        self.paths = tuple(paths)


class DataPath(Value):
    """A file or folder on this machine, and its name in the data folder of the nodes."""

    name: str  # "files/images", "tfds/mnist/3.0.1"
    path: Path
    executable: bool = False  # its files are programs


class Contents(Value, dict=True):
    """A manifest, and the location of its files on this machine."""

    manifest: Manifest
    paths: Sequence[Path]  # of each file of data
    root: Path | None = None  # of code: its files are below it
    kept: Mapping[int, bytes] = {}  # contents by the file's position
    notes: tuple[str, ...] = ()  # for the user: skipped or very large files
    left_out: Mapping[str, Reason] = {}

    @cached_property
    def digest(self) -> str:
        return self.manifest.digest

    @cached_property
    def encoded(self) -> bytes:
        """Return the manifest in the nodes' format."""
        return self.manifest.encode()

    @property
    def files(self) -> int:
        return len(self.manifest.rows)

    @property
    def size(self) -> int:
        return self.manifest.total

    def path(self, number: int) -> Path:
        return self.root / self.manifest.files[number].path if self.root else self.paths[number]

    def read(self, piece: int) -> bytes:
        """Read one piece; raise ChangedError if it has changed."""
        return b"".join(self._read(blob) for blob in self.manifest.pieces[piece])

    def changed(self) -> list[str]:
        """Return the paths that have changed, of those not kept in memory."""
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
        path = self.path(blob.file)
        named = [self.manifest.files[blob.file].path if self.root else str(path)]
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(blob.at)
                data = file.read(blob.size)
        except OSError as error:
            raise ChangedError(named, reason(error)) from error
        if hashlib.sha256(data).hexdigest() != self.manifest.sha256(blob):
            raise ChangedError(named)
        return data


def _check(subject: str, files: int, length: int, hint: str) -> None:
    """Raise UsageError for more files than one message to a node can list."""
    if files > MOST_FILES or length > _MOST_NAMED:
        why = f"at most {MOST_FILES:,} can be sent, with names and checksums of {_MOST_NAMED / 1e6:,.0f} MB"
        raise UsageError(f"{subject} {files:,} files", why=why, hint=hint)


# --- code ---


class CodeSource(Value):
    """The user's local code, listed once for the checks of a launch and for the keeper."""

    root: CodeRoot
    listing: CodeListing
    state: list[str] | None = None  # of a copy: git's state of its original

    def read(self) -> Contents:
        """Read the listed files, without those that are gone; raise UsageError."""
        root, listing = self.root.path, self.listing
        subject, hint = f"the code at {root} has", "list data and environments in .orchestrateignore"
        _check(subject, len(listing.paths), 0, hint)
        rows, kept, room = list[list[object]](), dict[str, bytes](), _KEPT
        left_out = dict(listing.left_out)

        def read(paths: Sequence[str]) -> list[tuple[str, list[object] | None, bytes | None]]:
            return [(path, *_row(root, path, is_named=path in listing.named)) for path in paths]

        with ThreadPoolExecutor(_HASHERS) as pool:
            # A task of the pool costs more than a small file; large files are often neighbors in the listing.
            count = min(_PARTS, len(listing.paths))
            parts = pool.map(read, (listing.paths[start::count] for start in range(count)))
            for path, row, content in itertools.chain.from_iterable(parts):
                if row is not None:
                    rows.append(row)
                elif content is not None:
                    left_out[path] = Reason.KEY
                if row is not None and content is not None and len(content) <= room:
                    kept[path] = content
                    room -= len(content)
        manifest = Manifest(sorted(rows, key=lambda row: str(row[0])))
        notes = (*listing.notes, *private.remarks(left_out), *private.weight(manifest))
        places = {number: kept[file.path] for number, file in enumerate(manifest.files) if file.path in kept}
        contents = Contents(manifest, (), root, places, notes, left_out)
        _check(subject, contents.files, len(contents.encoded), hint)
        return contents


def read_folder(folder: Path) -> Contents:
    """Read everything in a folder, including what is usually skipped: it was fetched from a host."""
    return folder_source(folder).read()


def folder_source(folder: Path) -> CodeSource:
    folder = folder.resolve()
    return _source(folder, _below(folder))


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder except folders, nothing if it is missing.

    Raises OSError: Python 3.13's `rglob` hides it.
    """
    for path, folders, files in os.walk(folder, onerror=_raise):
        links = (name for name in folders if Path(path, name).is_symlink())
        yield from (Path(path, name) for name in (*links, *files))


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _source(root: Path, paths: Iterable[Path]) -> CodeSource:
    """List these files below `root`, whatever they contain."""
    names = [path.relative_to(root).as_posix() for path in paths]
    return CodeSource(CodeRoot(root), CodeListing(names, named=set(names)))


def _row(root: Path, path: str, *, is_named: bool) -> tuple[list[object] | None, bytes | None]:
    """Return a manifest row and the content of a small file; no row for a key, a device, a missing file."""
    full, digests, size = f"{root}/{path}", [], 0
    with reading(path), contextlib.suppress(FileNotFoundError):
        status = os.lstat(full)
        if stat.S_ISLNK(status.st_mode):
            return [path, os.readlink(full)], None
        if not stat.S_ISREG(status.st_mode):
            return None, None
        content: bytes | None = b""
        with FileIO(full) as file:
            # Not beyond a truncated piece: the file may have grown since.
            while size % BLOB == 0 and (data := file.read(BLOB)):
                digests.append(hashlib.sha256(data).hexdigest())
                size += len(data)
                content = data if size <= _SMALL else None
        if content and not is_named and private.holds_key(path, content):
            return None, content
        return [path, 0o755 if status.st_mode & 0o111 else 0o644, size, "".join(digests)], content
    return None, None


def read_builtin() -> Contents:
    """Read worker_entry, the bundled training program, as a tree to be sent."""
    home = _builtin_home()
    files = (path for path in _below(home / "worker_entry") if "__pycache__" not in path.parts)
    return _source(home, files).read()


def check_builtin(arguments: Sequence[str]) -> None:
    """Have worker_entry check its options; raise UsageError for a wrong one, HelpRequested for --help."""
    home = str(_builtin_home())
    sys.path.insert(0, home)
    try:
        options = importlib.import_module("worker_entry.options")
    finally:
        sys.path.remove(home)
    made = options.parser()

    def refuse(message: str) -> NoReturn:
        raise UsageError(message, hint="`orchestrate launch -- --help`; your own module: `python -m NAME`")

    def help_() -> NoReturn:
        raise HelpRequested(made.format_help())

    made.error, made.print_help = refuse, help_
    options.parse(arguments, made)


def _builtin_home() -> Path:
    """Return worker_entry's parent: beside our package in a clone, in it in an installed wheel.

    In a wheel it is not a top-level package, because another distribution may use that name.
    """
    package = Path(orchestrator.__file__).resolve().parent
    shipped = package / "_shipped"
    return shipped if shipped.is_dir() else package.parent


# --- data ---


def read_data(
    sources: Sequence[DataPath], on_bytes: Callable[[int, int], None] = lambda _done, _all: None
) -> Contents:
    """Read what the sources name, or recall its digests; raise UsageError. `on_bytes` gets done and total."""
    entries = (entry for source in sources for entry in _walk(source))
    listed = sorted(itertools.islice(entries, MOST_FILES + 1), key=lambda entry: entry.name)
    if not listed:
        raise UsageError(
            "[data] names nothing but empty folders",
            why=", ".join(str(source.path) for source in sources),
            hint="name folders that hold the data",
        )
    hint = "pack them into larger files, as TFRecords"
    _check("[data] names", len(listed), sum(map(_Entry.length, listed)), hint)
    key = hashlib.sha256(json.dumps([BLOB, *(entry.identity for entry in listed)]).encode()).hexdigest()[:32]
    memory = cache("data") / "digests" / f"{key}.json"
    digests = _recall(memory, len(listed))
    if digests is None:
        digests = _hash(listed, on_bytes)
        with contextlib.suppress(OSError):  # it is read again next time
            make_folder(memory.parent)
            write_atomically(memory, msgspec.json.encode(digests))
    rows = [
        [entry.name, 0o755 if entry.executable else 0o644, entry.size, text]
        for entry, text in zip(listed, digests, strict=True)
    ]
    contents = Contents(Manifest(rows), [entry.path for entry in listed])
    _check("[data] names", contents.files, len(contents.encoded), hint)
    return contents


class _Entry(Value):
    name: str
    path: Path
    size: int
    executable: bool
    identity: tuple[str, str, int, int, int]

    def length(self) -> int:
        """Return the minimum length of its row of a manifest, before it is read."""
        return len(self.name) + digits(self.size)


def _walk(source: DataPath) -> Iterator[_Entry]:
    """Return the files of a source; links are followed, because tasks read their content."""
    waiting = [(source.name, source.path)]
    while waiting:
        name, path = waiting.pop()
        try:
            status = path.stat()  # through a link to one of its parent folders: too many files
            if stat.S_ISDIR(status.st_mode):
                waiting += [(f"{name}/{child}", path / child) for child in os.listdir(path)]
            elif stat.S_ISREG(status.st_mode):
                name.encode()
                identity = (name, os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)
                yield _Entry(name, path, status.st_size, source.executable, identity)
        except UnicodeEncodeError:
            raise UsageError(f"{name!a} is not UTF-8", hint="rename it, to send it as data") from None
        except OSError as error:
            raise _unreadable(path, error) from error


def _hash(entries: Sequence[_Entry], on_bytes: Callable[[int, int], None]) -> list[str]:
    """Return the digests of each file's blobs; each byte is read once."""
    total, done = sum(entry.size for entry in entries), 0
    blobs = [(entry, at) for entry in entries for at in blobs_of(entry.size)]
    digests: dict[str, list[str]] = {entry.name: [] for entry in entries}
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
        raise ChangedError([str(entry.path)])
    return hashlib.sha256(data).hexdigest()


def _recall(path: Path, files: int) -> list[str] | None:
    try:
        stored = msgspec.json.decode(read_plain(path, _MOST_MEMORY), type=list[str])
    except (OSError, ValueError):
        return None
    return stored if len(stored) == files else None


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read {path}, which is part of [data]",
        why=f"{reason(error)}: {os.path.realpath(path)}",
        hint="correct it, or leave it out; links are followed, since it is their content that tasks read",
    )
