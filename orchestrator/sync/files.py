"""Fetching folders and files from a host; what this machine already has is not sent again.

A host lists names, sizes and times. What differs is requested in parts, and written to a hidden folder,
which stays after an interruption so that the next transfer resumes there. Hosts are untrusted: each name,
kind, size and link of a listing is validated once, in `admit`, and nothing else of it is used.
"""

import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from msgspec import Meta, Struct

from orchestrator import wire
from orchestrator.errors import ClusterError, HostError, Trouble
from orchestrator.node.base import locks
from orchestrator.node.base.descriptors import write_all
from orchestrator.node.base.fault import NodeError, reason
from orchestrator.node.disk import listing
from orchestrator.node.disk.below import Below, is_no_folder, parts_of, shortened, stays_inside
from orchestrator.node.disk.listing import CHUNK, FILE, FOLDER, LINK, ODD, Entry
from orchestrator.node.disk.removing import remove as discard
from orchestrator.node.stock.manifest import BLOB
from orchestrator.sync.conversation import Conversation, ahead, batches
from orchestrator.text import size, some
from orchestrator.value import Value
from orchestrator.wire.message import read

_PATIENCE = 600.0
_TOGETHER = 500  # files in one request
_AHEAD = 16  # requests for 1 MB that are sent ahead: 1 Gbit/s over 100 ms
_SHOWN = 8  # names
_SPARE = 512 << 20  # bytes that stay free on our disk for other programs
_MOST_ROW = 64 << 10  # bytes; names and targets have at most 4,095 each, plus escapes
_MOST_TARGET = 4095
# git executes files in such a folder wherever it finds one; some file systems ignore case.
_EXECUTED = ".git"
_EVENTS = "tfevents"  # TensorBoard reads every file with this in its name
_MOST_EVENT_FILES = 4096  # of one host
MOST_EVENT_BYTES = 4 << 30
LEFT_OUT = "links that lead out of the folder, folders named .git, FIFOs, sockets, devices"

OnBytes: TypeAlias = Callable[[int], None]  # bytes that have arrived, part by part


class _Row(NamedTuple):
    path: str
    kind: Literal["file", "folder", "link", "odd"]
    size: Annotated[int, Meta(ge=0, lt=1 << 53)]
    mtime_ns: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    mode: Annotated[int, Meta(ge=0)]
    target: str
    inode: Annotated[int, Meta(ge=0)]


class HostListing(Value):
    """A path on a host: `root` and names below it; a file is one name in its folder."""

    kind: str  # FOLDER, FILE or "" if it does not exist
    root: str
    entries: tuple[Entry, ...]
    left_out: tuple[str, ...] = ()


def work_folder(workdir: str, run: str, cwd: str = "") -> str:
    """Return a run's working folder on a host, or a folder in it: the base of its tasks' relative paths."""
    return "/".join(filter(None, (workdir, "runs", run, "work", cwd)))


def look(session: Conversation, remote: str, *, any_link: bool = False, holding: str = "") -> HostListing:
    """List what is at a path (the host expands `~`); raise HostError, also for an implausible listing.

    Only files with `holding` in their names are listed.
    """
    reply = session.request(wire.FilesList(path=remote, holding=holding), timeout=_PATIENCE)
    if not reply.kind:
        return HostListing("", reply.root, ())
    entries, left_out = admit(session.host.name, reply.payload, reply.kind, any_link=any_link)
    return HostListing(reply.kind, reply.root, entries, left_out)


def admit(
    host: str, payload: bytes, kind: str, *, any_link: bool = False
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return the valid entries of a listing, and the names for LEFT_OUT; raise HostError for a false one.

    With `any_link` all symbolic links are accepted: the digest of the whole tree is checked before it is
    used.
    """
    entries: dict[str, Entry] = {}
    left_out: dict[str, None] = {}
    # One by one: an invented listing takes no more memory.
    for number, line in enumerate(io.BytesIO(payload)):
        if len(line) > _MOST_ROW or number >= listing.MOST_ENTRIES:
            raise unasked(host, "a list", f"of more than {listing.MOST_ENTRIES:,} names, or one without end")
        try:
            entry = Entry(*read(json.loads(line), _Row, "a row of its list of files"))
            parts, target = parts_of(entry.path), os.fsencode(entry.target)
        except NodeError as error:
            raise unasked(host, error.what, error.why) from None
        except (ValueError, RecursionError) as error:
            raise unasked(host, "a list", wire.printable(str(error), 300)) from None
        if entry.path in entries or entry.path in left_out:
            raise unasked(host, entry.path, "it is listed twice")
        if not left_out.keys().isdisjoint(parents(entry.path)):
            continue
        above = entry.path.rpartition("/")[0]
        if above and (above not in entries or entries[above].kind != FOLDER):
            raise unasked(host, entry.path, "it is listed below something that is not a folder")
        if entry.kind == LINK and (not 0 < len(target) <= _MOST_TARGET or b"\0" in target):
            raise unasked(host, entry.path, "no link has such a target")
        leads_out = entry.kind == LINK and not any_link and not stays_inside(parts, entry.target)
        if entry.kind == ODD or leads_out or (not any_link and parts[-1].casefold() == _EXECUTED):
            left_out[entry.path] = None
        else:
            entries[entry.path] = entry._replace(mode=entry.mode & 0o777)
    taken = tuple(entries.values())
    if kind == FILE and not (len(taken) == 1 and taken[0].kind == FILE and "/" not in taken[0].path):
        raise unasked(host, next(iter(entries), ""), "it was announced as a single file")
    return taken, tuple(left_out)


def unasked(host: str, name: str, why: str) -> HostError:
    """Return the error for lists, names and files that an honest host does not send."""
    return HostError(
        host,
        "sent files that were not requested",
        kind="unasked",
        why=f"{shortened(name)}: {why}",
        hint="get nothing more from that machine until you know who controls it",
    )


def fetch(session: Conversation, remote: str, local: Path, *, any_link: bool = False) -> tuple[str, ...]:
    """Make the local folder equal to `remote`; return the names that `admit` left out.

    Raise HostError (kind "missing" for none) or ClusterError.

    ClusterError means that it cannot be written here. What was at `local` is replaced at the end, or not at
    all.
    """
    source = look(session, remote, any_link=any_link)
    if not source.kind:
        raise missing(session, remote)
    if source.kind != FOLDER:
        raise HostError(session.host.name, f"has a file at {remote}", kind="files", why="a folder was meant")
    local = Path(os.path.realpath(local))
    with our_disk(local):
        have = {entry.path: entry for entry in listing.entries(str(local))} if local.is_dir() else {}
        differ = [
            entry for entry in source.entries if entry.path not in have or not entry.same(have[entry.path])
        ]
        if not differ and len(have) == len(source.entries):
            return source.left_out
        local.parent.mkdir(parents=True, exist_ok=True)
        with Staging(local.with_name(f".{local.name}.incoming")) as staging:
            staging.keep_only(source.entries)
            for entry in set(source.entries).difference(differ):
                if entry.kind == FILE and staging.size_of(entry) != entry.size:
                    staging.link(local, entry)
            changed = receive(session, source.root, source.entries, staging).gone
            if changed:
                raise HostError(
                    session.host.name,
                    f"cannot give {remote} as a whole",
                    kind="changed",
                    why=f"{shortened(changed[0])} changed while it was read: something writes there",
                    hint="try again",
                )
            aside = local.with_name(f".{local.name}.outgoing")
            discard(str(aside))
            if os.path.lexists(local):
                local.rename(aside)
            staging.path.rename(local)
            discard(str(aside))
    return source.left_out


def missing(session: Conversation, remote: str, names: Collection[str] = ()) -> HostError:
    """Return the error for a missing `remote`; `names` are in the run's work folder."""
    return HostError(
        session.host.name,
        f"has no {remote}",
        kind=Trouble.MISSING,
        why=f"the work folder holds {some(sorted(names), _SHOWN)}" if names else "",
        hint="check the path: a relative one starts in the run's work folder",
    )


def parents(path: str) -> Iterator[str]:
    """Return the parent folders of a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


class Staging:
    """A hidden folder that is being filled; a context manager. It stays until renamed or removed.

    A file in it is complete if it has the listed size and time; with the same time and a smaller size it is
    partial.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.path.mkdir(exist_ok=True)
        self.top = Below(str(self.path), made=True)
        if not locks.take(self.top.fd):
            self.top.__exit__(None, None, None)
            raise ClusterError(
                f"{self.path} is being filled by another command", hint="try again when that is over"
            )
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, HostError) and error.kind in ("unasked", Trouble.PROTOCOL):
            discard(str(self.path))  # do not resume from a host that sent false data
        elif error is not None:
            with suppress(OSError):
                self.path.rmdir()  # if there is nothing to resume from
        self.top.__exit__(None, None, None)

    def keep_only(self, entries: Sequence[Entry]) -> None:
        """Remove what an interrupted transfer of something else has left."""
        kinds = {above: FOLDER for entry in entries for above in parents(entry.path)}
        kinds.update({entry.path: entry.kind for entry in entries})
        for entry in listing.entries(str(self.path)):
            if kinds.get(entry.path) != entry.kind:
                discard(str(self.path / entry.path))

    def size_of(self, entry: Entry) -> int:
        """Return how many bytes of a file are here; -1 if none are usable."""
        try:
            *above, last = parts_of(entry.path)
            status = os.stat(last, dir_fd=self.top.folder(above), follow_symlinks=False)
        except OSError:
            return -1
        same = stat.S_ISREG(status.st_mode) and listing.time_of(status) == entry.mtime_ns
        return status.st_size if same and status.st_size <= entry.size else -1

    def make(self, entry: Entry) -> None:
        """Create a folder or a link, or only the parent folder of a file; never replace anything."""
        *above, last = parts_of(entry.path)
        folder = self.top.folder([*above, last] if entry.kind == FOLDER else above, make=True)
        if entry.kind == LINK:
            try:
                os.symlink(entry.target, last, dir_fd=folder)
            except FileExistsError:
                if os.readlink(last, dir_fd=folder) != entry.target:
                    raise

    def write(self, entry: Entry, at: int, data: bytes) -> None:
        """Write a part of a file; the first one replaces it."""
        *above, last = parts_of(entry.path)
        folder = self.top.folder(above, make=True)
        flags = os.O_WRONLY | os.O_NOFOLLOW
        if at == 0:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=folder)
            flags |= os.O_CREAT | os.O_EXCL
        fd = os.open(last, flags, entry.mode & 0o777 | 0o600, dir_fd=folder)
        with os.fdopen(fd, "wb", buffering=0) as file:
            file.seek(at)
            write_all(fd, data)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))

    def link(self, local: Path, entry: Entry) -> None:
        """Reuse an unchanged local file; where that is impossible, the file is fetched."""
        *above, last = parts_of(entry.path)
        with Below(str(local)) as old, suppress(OSError):
            source, target = old.folder(above), self.top.folder(above, make=True)
            os.link(last, last, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


class Changed(Value):
    """Files that were written while they were fetched, by name."""

    gone: list[str]  # not as listed any more: nothing of them is of use
    grown: list[str]


def receive(
    session: Conversation,
    root: str,
    entries: Sequence[Entry],
    staging: Staging,
    *,
    on_bytes: OnBytes = lambda _: None,
    growing: bool = False,
    here: Callable[[Entry], int] | None = None,
) -> Changed:
    """Fetch the entries that `admit` accepted in a listing of `root`; return which of them have changed.

    `here` returns the bytes of a file that have arrived, -1 for none. With `growing`, a file that has grown
    is fetched up to its listed size. Never more bytes than requested are accepted. Raise HostError,
    ClusterError, or OSError for our disk.
    """
    host = session.host.name
    parts: list[_Section] = []
    for entry in entries:
        if entry.kind == FILE and (came_before := (here or staging.size_of)(entry)) != entry.size:
            starts = range(max(0, came_before), entry.size, BLOB) if entry.size else (0,)
            parts += [_Section(entry, at, min(BLOB, entry.size - at)) for at in starts]
    needed, free = sum(part.length for part in parts), shutil.disk_usage(staging.path).free
    if needed and needed > free - _SPARE:
        why = f"{size(free)} are free in {staging.path.parent}; {size(_SPARE)} have to remain"
        hint = "make room, or choose another folder"
        raise ClusterError(f"no disk space for {size(needed)} from {host}", why=why, hint=hint)
    changed: dict[str, None] = {}
    grown: dict[str, None] = {}

    def questions() -> Iterator[tuple[wire.FilesGet, bytes]]:
        for some in together:
            named = [
                (entry.path, at, length, entry.size, entry.mtime_ns, entry.inode)
                for entry, at, length in some
            ]
            yield wire.FilesGet(root=root, parts=len(some), growing=growing), json.dumps(named).encode()

    try:
        for entry in entries:
            staging.make(entry)
        together = list(batches(parts, lambda part: part.length, CHUNK, _TOGETHER))
        for some, reply in zip(together, ahead(session, questions(), _PATIENCE, _AHEAD), strict=True):
            changed.update({some[place].file.path: None for place in reply.gone})
            came = [part for place, part in enumerate(some) if place not in set(reply.gone)]
            if len(reply.payload) != sum(part.length for part in came):
                raise unasked(host, "a part of a file", "its length is not what was requested")
            grown.update({some[place].file.path: None for place in reply.grown})
            start = 0
            for entry, at, length in came:
                if entry.path not in changed:
                    staging.write(entry, at, reply.payload[start : start + length])
                start += length
            on_bytes(start)
    except OSError as error:
        if isinstance(error, FileExistsError) or is_no_folder(error):
            raise unasked(host, str(error.filename), "something else is in its place") from None
        raise
    return Changed(sorted(changed), sorted(grown.keys() - changed.keys()))


def torn(session: Conversation, root: str, entries: Sequence[Entry], staging: Staging) -> list[str]:
    """Remove what is not the beginning of a file that the host has now from the staging folder; return it."""
    sizes = json.dumps([(entry.path, entry.size) for entry in entries]).encode()
    there = session.request(wire.FilesDigest(root=root), sizes, timeout=_PATIENCE).digests if entries else ()
    theirs = dict(zip([entry.path for entry in entries], there, strict=False))
    here = {entry.path: listing.digest_below(staging.top, entry.path, entry.size) for entry in entries}
    bad = [path for path, digest in here.items() if digest is None or theirs.get(path) != digest]
    for path in bad:
        discard(str(staging.path / path))
    return bad


class _Section(NamedTuple):
    file: Entry
    at: int
    length: int


@contextmanager
def our_disk(local: Path) -> Iterator[None]:
    """Turn an error of this machine's disk into one of ours, rather than the host's."""
    try:
        yield
    except NodeError as error:  # of code that hosts also run
        raise ClusterError(f"this machine {error.what}", why=error.why, hint=error.hint) from error
    except OSError as error:
        raise ClusterError(
            f"cannot write {error.filename or local}",
            why=reason(error),
            hint="make room here, or check permissions",
        ) from error


class EventMirror(Struct):
    """A copy of one host's TensorBoard files: they grow here as they grow there."""

    folder: Path
    root: str  # on the host
    sizes: dict[str, int] = {}  # of each path, here

    def catch_up(self, session: Conversation, most: int = MOST_EVENT_BYTES) -> None:
        """Fetch what is new; raise HostError, or ClusterError if it cannot be written here."""
        remote = look(session, self.root, holding=_EVENTS)
        files = [entry for entry in remote.entries if entry.kind == FILE and _EVENTS in Path(entry.path).name]
        grown = [entry for entry in files if self.sizes.get(entry.path) != entry.size]
        sizes = {**self.sizes, **{entry.path: entry.size for entry in files}}
        if len(sizes) > _MOST_EVENT_FILES or sum(sizes.values()) > most:
            what = "has more event files than are shown"
            why = f"shown are at most {_MOST_EVENT_FILES:,} of them, and {most >> 20} MB"
            raise HostError(session.host.name, what, kind="files", why=why)

        def here(entry: Entry) -> int:
            size = self.sizes.get(entry.path, -1)
            return size if size <= entry.size else -1  # it was rewritten

        with our_disk(self.folder), Staging(self.folder) as staging:
            changed = receive(session, remote.root, grown, staging, growing=True, here=here).gone
        self.sizes.update({entry.path: entry.size for entry in grown if entry.path not in changed})
