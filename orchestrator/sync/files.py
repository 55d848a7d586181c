"""Folders and files of a host, brought to this machine; what is here already is not sent again.

A host lists names, sizes and times; what differs is asked for in parts, and comes into a hidden folder, which
stays when it is interrupted: the next time goes on there. A host may be anybody's: each name, kind, size and
link of its listing is looked at in `admit`, once, and nothing else of it is used.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
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
from orchestrator.text import some
from orchestrator.wire.message import read

_PATIENCE = 600.0
_TOGETHER = 500  # files in one question
_SHOWN = 8  # names
_SPARE = 512 << 20  # bytes that stay free on our disk: other programs write, too
_MOST_ROW = 64 << 10  # bytes; names and targets have 4,095 each, and escapes
_MOST_TARGET = 4095
# git executes what lies in such a folder, wherever it is found; some file systems know no upper case.
_EXECUTED = ".git"
_EVENTS = "tfevents"  # TensorBoard reads whatever has it in its name
_MOST_EVENT_FILES = 4096  # of one host
MOST_EVENT_BYTES = 4 << 30
LEFT_OUT = "links that lead out of the folder, folders named .git, FIFOs, sockets, devices"

Told: TypeAlias = Callable[[int], None]  # bytes that have come, part by part


class _Row(NamedTuple):
    """An entry as a host lists it."""

    path: str
    kind: Literal["file", "folder", "link", "odd"]
    size: Annotated[int, Meta(ge=0, lt=1 << 53)]
    mtime_ns: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    mode: Annotated[int, Meta(ge=0)]
    target: str


class Fetched(Struct, frozen=True):
    files: int  # that crossed; 0: it was the same already
    bytes: int
    seconds: float
    left_out: tuple[str, ...] = ()  # what the host has and we do not take: see `admit`


class HostListing(Struct, frozen=True):
    """A path on a host: `root` and names below it; a file is one name in its folder."""

    kind: str  # FOLDER, FILE or "" for nothing
    root: str
    entries: tuple[Entry, ...]
    left_out: tuple[str, ...] = ()


def work_folder(workdir: str, run: str, cwd: str = "") -> str:
    """The working folder of a run on a host, or a folder in it: what relative paths mean to its tasks."""
    return "/".join(filter(None, (workdir, "runs", run, "work", cwd)))


def look(session: Conversation, remote: str, *, any_link: bool = False, holding: str = "") -> HostListing:
    """List what is at a path (`~` is expanded there); raise HostError, also for what no honest host says.

    Of files only those with `holding` in their names.
    """
    reply = session.request(wire.FilesList(path=remote, holding=holding), timeout=_PATIENCE)
    if not reply.kind:
        return HostListing("", reply.root, ())
    entries, left_out = admit(session.host.name, reply.payload, reply.kind, any_link=any_link)
    return HostListing(reply.kind, reply.root, entries, left_out)


def admit(
    host: str, payload: bytes, kind: str, *, any_link: bool = False
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The entries of a listing, and the names that LEFT_OUT speaks of; raise HostError for a false one.

    With `any_link` symbolic links are taken as they are: of a tree whose digest is compared before its use.
    """
    entries: dict[str, Entry] = {}
    left_out: dict[str, None] = {}
    for number, line in enumerate(io.BytesIO(payload)):  # one by one: what is made up takes no more memory
        if len(line) > _MOST_ROW or number >= listing.MOST_ENTRIES:
            raise unasked(host, "a list", f"of more than {listing.MOST_ENTRIES:,} names, or one without end")
        try:
            one = Entry(*read(json.loads(line), _Row, "a row of its list of files"))
            parts, target = parts_of(one.path), os.fsencode(one.target)
        except NodeError as error:
            raise unasked(host, error.what, error.why) from None
        except (ValueError, RecursionError) as error:
            raise unasked(host, "a list", wire.printable(str(error), 300)) from None
        if one.path in entries or one.path in left_out:
            raise unasked(host, one.path, "it is listed twice")
        if not left_out.keys().isdisjoint(parents(one.path)):
            continue
        above = one.path.rpartition("/")[0]
        if above and (above not in entries or entries[above].kind != FOLDER):
            raise unasked(host, one.path, "it is listed below something that is not a folder")
        if one.kind == LINK and (not 0 < len(target) <= _MOST_TARGET or b"\0" in target):
            raise unasked(host, one.path, "no link has such a target")
        leads_out = one.kind == LINK and not any_link and not stays_inside(parts, one.target)
        if one.kind == ODD or leads_out or (not any_link and parts[-1].casefold() == _EXECUTED):
            left_out[one.path] = None
        else:
            entries[one.path] = one._replace(mode=one.mode & 0o777)
    taken = tuple(entries.values())
    if kind == FILE and not (len(taken) == 1 and taken[0].kind == FILE and "/" not in taken[0].path):
        raise unasked(host, next(iter(entries), ""), "a single file was said to be there")
    return taken, tuple(left_out)


def unasked(host: str, name: str, why: str) -> HostError:
    """The one error for lists, names and files that an honest host does not send."""
    return HostError(
        host,
        "sent files that were not asked for",
        kind="unasked",
        why=f"{shortened(name)}: {why}",
        hint="take nothing more from that machine before you know who controls it",
    )


def fetch(session: Conversation, remote: str, local: Path, *, any_link: bool = False) -> Fetched:
    """Make the folder `local` what `remote` is; raise HostError (kind "missing" when nothing is there), or
    ClusterError when it cannot be written here. What was at `local` is replaced at the end, or not at all.
    """
    began = time.monotonic()
    there = look(session, remote, any_link=any_link)
    if not there.kind:
        raise missing(session, remote)
    if there.kind != FOLDER:
        raise HostError(session.host.name, f"has a file at {remote}", kind="files", why="a folder was meant")
    local = Path(os.path.realpath(local))
    with our_disk(local):
        have = {one.path: one for one in listing.entries(str(local))} if local.is_dir() else {}
        differ = [one for one in there.entries if one.path not in have or not one.same(have[one.path])]
        if not differ and len(have) == len(there.entries):
            return Fetched(0, 0, time.monotonic() - began, there.left_out)
        local.parent.mkdir(parents=True, exist_ok=True)
        with Staging(local.with_name(f".{local.name}.incoming")) as staging:
            staging.keep_only(there.entries)
            for one in set(there.entries).difference(differ):
                if one.kind == FILE and staging.size_of(one) != one.size:
                    staging.link(local, one)
            gone = receive(session, there.root, there.entries, staging)
            if gone:
                raise HostError(
                    session.host.name,
                    f"cannot give {remote} as a whole",
                    kind="changed",
                    why=f"{shortened(gone[0])} vanished or changed while it was read: something writes there",
                    hint="try again",
                )
            aside = local.with_name(f".{local.name}.outgoing")
            discard(str(aside))
            if os.path.lexists(local):
                local.rename(aside)
            staging.path.rename(local)
            discard(str(aside))
    files = [one for one in differ if one.kind != FOLDER]
    return Fetched(len(files), sum(one.size for one in files), time.monotonic() - began, there.left_out)


def missing(session: Conversation, remote: str, names: Collection[str] = ()) -> HostError:
    """Nothing is at `remote`; `names` are in the run's work folder."""
    return HostError(
        session.host.name,
        f"has no {remote}",
        kind=Trouble.MISSING,
        why=f"the work folder holds {some(sorted(names), _SHOWN)}" if names else "",
        hint="look at the path: a relative one is meant in the run's work folder",
    )


def parents(path: str) -> Iterator[str]:
    """The folders above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


class Staging:
    """A hidden folder of ours that is filled; in a `with`. It stays until it is renamed or removed.

    A file in it is complete when it has the size and the time that the host listed; one with the time and a
    smaller size is the beginning of it.
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
            discard(str(self.path))  # nothing of a host that lies is to be gone on with
        self.top.__exit__(None, None, None)

    def keep_only(self, wanted: Sequence[Entry]) -> None:
        """Remove what an interrupted transfer of something else has left."""
        kinds = {above: FOLDER for one in wanted for above in parents(one.path)}
        kinds.update({one.path: one.kind for one in wanted})
        for one in listing.entries(str(self.path)):
            if kinds.get(one.path) != one.kind:
                discard(str(self.path / one.path))

    def size_of(self, one: Entry) -> int:
        """How many bytes of a file are here; -1 for none of it."""
        try:
            *above, last = parts_of(one.path)
            found = os.stat(last, dir_fd=self.top.folder(above), follow_symlinks=False)
        except OSError:
            return -1
        same = stat.S_ISREG(found.st_mode) and listing.time_of(found) == one.mtime_ns
        return found.st_size if same and found.st_size <= one.size else -1

    def make(self, one: Entry) -> None:
        """Make a folder or a link, or nothing but the place of a file; never over something."""
        *above, last = parts_of(one.path)
        folder = self.top.folder([*above, last] if one.kind == FOLDER else above, make=True)
        if one.kind == LINK:
            try:
                os.symlink(one.target, last, dir_fd=folder)
            except FileExistsError:
                if os.readlink(last, dir_fd=folder) != one.target:
                    raise

    def write(self, one: Entry, at: int, data: bytes) -> None:
        """Add a part to a file; the first one begins it anew."""
        *above, last = parts_of(one.path)
        folder = self.top.folder(above, make=True)
        flags = os.O_WRONLY | os.O_NOFOLLOW
        if at == 0:
            try:
                os.unlink(last, dir_fd=folder)
            except FileNotFoundError:
                pass
            flags |= os.O_CREAT | os.O_EXCL
        fd = os.open(last, flags, one.mode & 0o777 | 0o600, dir_fd=folder)
        with os.fdopen(fd, "wb", buffering=0) as file:
            file.seek(at)
            write_all(fd, data)
            os.utime(fd, ns=(one.mtime_ns, one.mtime_ns))

    def link(self, local: Path, one: Entry) -> None:
        """Take an unchanged file from what is there; where that cannot be, it is fetched."""
        *above, last = parts_of(one.path)
        with Below(str(local)) as old:
            try:
                source, target = old.folder(above), self.top.folder(above, make=True)
                os.link(last, last, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            except OSError:
                pass


def receive(
    session: Conversation,
    root: str,
    wanted: Sequence[Entry],
    staging: Staging,
    *,
    told: Told = lambda _: None,
    growing: bool = False,
    here: Callable[[Entry], int] | None = None,
) -> list[str]:
    """Bring what `admit` took of a listing of `root`; return the names of what has changed.

    `here` tells how much of a file has come, -1 for nothing. With `growing`, of a file that has grown as much
    is taken as was listed. Not a byte more is taken than was asked for. Raise HostError, ClusterError, or
    OSError of our disk.
    """
    host = session.host.name
    parts: list[_Section] = []
    for one in wanted:
        if one.kind == FILE and (size := (here or staging.size_of)(one)) != one.size:
            starts = range(max(0, size), one.size, BLOB) if one.size else (0,)
            parts += [_Section(one, at, min(BLOB, one.size - at)) for at in starts]
    _check_room(host, sum(part.length for part in parts), staging.path)
    gone: dict[str, None] = {}

    def questions() -> Iterator[tuple[wire.FilesGet, bytes]]:
        for some in together:
            named = [(one.path, at, length, one.size, one.mtime_ns) for one, at, length in some]
            yield wire.FilesGet(root=root, parts=len(some), growing=growing), json.dumps(named).encode()

    try:
        for one in wanted:
            staging.make(one)
        together = list(batches(parts, lambda part: part.length, CHUNK, _TOGETHER))
        for some, reply in zip(together, ahead(session, questions(), _PATIENCE), strict=True):
            gone.update({some[place].file.path: None for place in reply.gone})
            came = [part for place, part in enumerate(some) if place not in set(reply.gone)]
            if len(reply.payload) != sum(part.length for part in came):
                raise unasked(host, "a part of a file", "it is not as long as what was asked for")
            start = 0
            for one, at, length in came:
                if one.path not in gone:
                    staging.write(one, at, reply.payload[start : start + length])
                start += length
            told(start)
    except OSError as error:
        if isinstance(error, FileExistsError) or is_no_folder(error):
            raise unasked(host, str(error.filename), "something else is in its place") from None
        raise
    return sorted(gone)


class _Section(NamedTuple):
    """A part of a file that is asked for."""

    file: Entry
    at: int
    length: int


def _check_room(host: str, size: int, target: Path) -> None:
    free = shutil.disk_usage(target).free
    if size and size > free - _SPARE:
        raise ClusterError(
            f"not enough room for {size / 1e6:,.0f} MB of {host}",
            why=f"{free / 1e6:,.0f} MB are free in {target.parent}"
            + (f", {_SPARE / 1e6:,.0f} MB of it in reserve" if free > _SPARE else ""),
            hint="make room, or take another folder",
        )


@contextmanager
def our_disk(local: Path) -> Iterator[None]:
    """An error of this machine's disk is one of ours, not of a host's."""
    try:
        yield
    except NodeError as error:  # of code that hosts run too
        raise ClusterError(f"this machine {error.what}", why=error.why, hint=error.hint) from error
    except OSError as error:
        raise ClusterError(
            f"cannot write {error.filename or local}",
            why=reason(error),
            hint="make room here, or look at who may write",
        ) from error


class EventMirror(Struct):
    """Copy of what the tasks of one host wrote for TensorBoard: files grow here as they grow there."""

    folder: Path
    root: str  # on the host
    sizes: dict[str, int] = {}  # of each path, here

    def catch_up(self, session: Conversation, most: int = MOST_EVENT_BYTES) -> None:
        """Take what is new; raise HostError, or ClusterError when it cannot be written here."""
        there = look(session, self.root, holding=_EVENTS)
        files = [one for one in there.entries if one.kind == FILE and _EVENTS in Path(one.path).name]
        grown = [one for one in files if self.sizes.get(one.path) != one.size]
        sizes = {**self.sizes, **{one.path: one.size for one in files}}
        if len(sizes) > _MOST_EVENT_FILES or sum(sizes.values()) > most:
            what = "has more event files than are shown"
            why = f"shown are at most {_MOST_EVENT_FILES:,} of them, and {most >> 20} MB"
            raise HostError(session.host.name, what, kind="files", why=why)

        def here(one: Entry) -> int:
            size = self.sizes.get(one.path, -1)
            return size if size <= one.size else -1  # it was written anew

        with our_disk(self.folder), Staging(self.folder) as staging:
            gone = receive(session, there.root, grown, staging, growing=True, here=here)
        self.sizes.update({one.path: one.size for one in grown if one.path not in gone})
