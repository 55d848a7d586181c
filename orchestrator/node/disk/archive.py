"""Folders as lists of entries and as tar streams, the same code on both ends of a connection.

A listing tells what would have to be sent; a stream carries only what was named. Symbolic links are
kept as they are and never followed; sockets, pipes and devices are left out, or named as ODD.
"""

from __future__ import annotations

import errno
import os
import stat

from ..base.annotations import Any, Iterator, Mapping, Sequence, TypeAlias
from ..base.fault import NodeError
from ..base.tuples import NamedTuple
from ..base.writing import write_all
from .below import MOST_LEVELS, Below, is_no_folder, parts_of, shortened, stays_inside
from .tarstream import BLOCK, CHUNK, FILE, FOLDER, LINK, NS, Member, Reader, UnaskedError

Wanted: TypeAlias = "Sequence[tuple[str, int]]"  # names, and of a file the size that it was listed with
ODD = "odd"  # a socket, a pipe or a device
MOST_ENTRIES = 400_000  # that one listing can name


class Entry(NamedTuple):
    """One thing below a folder; as a JSON list it crosses the wire."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    mode: int
    target: str  # of a link

    def same(self, other: Entry) -> bool:
        """Whether nothing has to be sent to make one from the other."""
        if self.kind != other.kind or self.kind == FOLDER:
            return self.kind == other.kind
        if self.kind == LINK:
            return self.target == other.target
        mine = (self.size, self.mtime_ns, self.mode & 0o100)
        return mine == (other.size, other.mtime_ns, other.mode & 0o100)


def entries(root: str) -> list[Entry]:
    """Everything below a folder, folders before what is in them; what vanishes meanwhile is left out.

    Raise OSError, or NodeError for more than can be listed.
    """
    found: list[Entry] = []
    with Below(root) as top:
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            parts = waiting.pop()
            here = list(_in_folder(top, parts))
            found += here
            if len(found) > MOST_ENTRIES:
                raise NodeError(
                    "files", f"has more than {MOST_ENTRIES:,} files in {root}", "too many", "name a part"
                )
            folders = [(*parts, os.path.basename(one.path)) for one in here if one.kind == FOLDER]
            if folders and len(parts) + 1 >= MOST_LEVELS:
                raise NodeError(
                    "files",
                    f"has folders more than {MOST_LEVELS} deep in {root}",
                    f"{shortened('/'.join(parts[:3]))}... goes on and on",
                    "name a part, or remove what made them",
                )
            waiting += reversed(folders)
    return found


def entry(path: str, name: str) -> Entry:
    """What is at `path`, listed as `name`; raise OSError."""
    return entry_at(path, None, name)


def entry_at(path: str, folder: int | None, name: str) -> Entry:
    """As `entry`, of a name in an open folder."""
    found = os.stat(path, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return Entry(name, LINK, 0, 0, 0o777, os.readlink(path, dir_fd=folder))
    kind = FOLDER if stat.S_ISDIR(found.st_mode) else FILE if stat.S_ISREG(found.st_mode) else ODD
    size = found.st_size if kind == FILE else 0
    return Entry(name, kind, size, time_of(found), stat.S_IMODE(found.st_mode), "")


def time_of(found: os.stat_result) -> int:
    """When a file was changed, in ns; what no header can say (before 1970, beyond 2262) is the nearest."""
    return min(max(0, found.st_mtime_ns), (1 << 63) - 1)


def pack(out: Any, root: str, wanted: Wanted, *, growing: bool = False) -> list[str]:
    """Write a tar stream of these; return those that are gone, or are not as large any more.

    With `growing`, of a file that has grown as much is taken as was listed. Raise OSError or NodeError.
    """
    gone = []
    with Below(root) as top:
        for name, size in wanted:
            try:
                _pack_one(out, top, name, size, growing)
            except (FileNotFoundError, _ChangedError):
                gone.append(name)
            except OSError as error:
                if not is_no_folder(error):
                    raise
                gone.append(name)
    out.write(b"\0" * (2 * BLOCK))
    return gone


def unpack(
    stream: Any, target: str, wanted: Mapping[str, Entry] | None = None, *, any_link: bool = False
) -> dict[str, int]:
    """Fill the empty folder `target` from a tar stream; return the names that came, and their sizes.

    `wanted` is what was asked for: anything else is refused, also in another kind or size. Links that lead
    out of the folder are refused but with `any_link`, for who compares them afterwards.
    Raise NodeError (kind "tar") for a stream that is damaged or holds what is refused, or OSError.
    """
    came: dict[str, int] = {}
    reader = Reader(stream)
    with Below(target, made=True) as top:
        for member in reader.members():
            why = _why_not(member, wanted, came, any_link=any_link)
            if why:
                raise UnaskedError(member.name, why)
            came[member.name] = member.size
            try:
                _place(reader, member, top)
            except OSError as error:
                if error.errno == errno.EEXIST or is_no_folder(error):
                    raise UnaskedError(member.name, "something else is in its place") from None
                raise
        reader.drain()
    return came


def room_for(wanted: Mapping[str, Entry]) -> int:
    """The most bytes that a stream of these can have, with all its headers and padding."""
    names = sum(4 * len(os.fsencode(one.path + one.target)) for one in wanted.values())
    sizes = sum(one.size for one in wanted.values())
    return sizes + names + 6 * BLOCK * len(wanted) + (1 << 16)


def _in_folder(top: Below, parts: tuple[str, ...]) -> Iterator[Entry]:
    try:
        folder = top.folder(parts)
        with os.scandir(folder) as found:
            names = sorted(one.name for one in found)
    except FileNotFoundError:
        return
    except OSError as error:
        if parts and is_no_folder(error):
            return  # replaced by something else since it was listed
        raise
    for name in names:
        try:
            one = entry_at(name, folder, "/".join((*parts, name)))
        except FileNotFoundError:
            continue
        yield one


class _ChangedError(Exception):
    """It is not what was listed any more."""


def _pack_one(out: Any, top: Below, name: str, size: int, growing: bool) -> None:
    import tarfile

    parts = parts_of(name)
    info = tarfile.TarInfo(name)
    folder = top.folder(parts[:-1])
    found = entry_at(parts[-1], folder, name)
    if found.kind == FILE:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(parts[-1], flags, dir_fd=folder), "rb", buffering=0) as file:
            now = os.fstat(file.fileno())  # it may have been replaced or have grown since it was listed
            if not stat.S_ISREG(now.st_mode) or now.st_size < size or (now.st_size > size and not growing):
                raise _ChangedError
            info.size, info.mode = size, stat.S_IMODE(now.st_mode)
            info.pax_headers = {NS: str(time_of(now))}
            out.write(_header(info))
            _copy_exactly(file, out, info.size, name)
        out.write(b"\0" * (-info.size % BLOCK))
        return
    info.mode = found.mode
    if found.kind == FOLDER:
        info.type = tarfile.DIRTYPE
    elif found.kind == LINK:
        info.type, info.linkname = tarfile.SYMTYPE, found.target
    else:
        raise _ChangedError
    out.write(_header(info))


def _header(info: Any) -> bytes:
    import tarfile

    made: bytes = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return made


def _copy_exactly(file: Any, out: Any, size: int, name: str) -> None:
    left = size
    while left:
        data = file.read(min(left, CHUNK))
        if not data:
            raise NodeError(
                "changed", f"{name} became shorter while it was read", "something writes there", "try again"
            )
        left -= len(data)
        out.write(data)


def _why_not(
    member: Member, wanted: Mapping[str, Entry] | None, came: Mapping[str, int], *, any_link: bool
) -> str:
    """Why a member is not taken; empty for one that is."""
    try:
        parts = parts_of(member.name)
    except NodeError as error:
        return error.why
    if member.name in came:
        return "it comes twice"
    if wanted is not None:
        asked = wanted.get(member.name)
        if asked is None:
            return "nobody asked for it"
        if (asked.kind, asked.size) != (member.kind, member.size):
            return "it was listed with another kind or size"
        if asked.kind == LINK and asked.target != member.target:
            return "it was listed with another target"
    if member.kind == LINK and not any_link and not stays_inside(parts, member.target):
        return "the link leads out of its folder"
    return ""


def _place(reader: Reader, member: Member, top: Below) -> None:
    """One member, never outside of the folder, never through a link, never over something."""
    parts = parts_of(member.name)
    if member.kind == FOLDER:
        top.folder(parts, make=True)
        return
    folder = top.folder(parts[:-1], make=True)
    if member.kind == LINK:
        os.symlink(member.target, parts[-1], dir_fd=folder)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(parts[-1], flags, member.mode & 0o777 | 0o600, dir_fd=folder)  # less the user's umask
    with os.fdopen(fd, "wb", buffering=0):
        for data in iter(reader.read, b""):
            write_all(fd, data)
        os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))  # by size and time is told what has changed
