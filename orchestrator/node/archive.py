"""Folders as lists of entries and as tar streams, the same code on both ends of a connection.

A listing tells what would have to be sent; a stream carries only what was named. Symbolic links are
kept as they are and never followed; sockets, pipes and devices are left out.
"""

from __future__ import annotations

import os
import stat

from .fault import NodeError
from .tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from typing import Any, Iterator, List, Sequence, Set, Tuple

FILE, FOLDER, LINK = "file", "folder", "link"
CHUNK = 1 << 20
_NS = "orchestrate.mtime_ns"  # tar's own times are floats, too coarse to tell two checkpoints apart
_BLOCK = 512


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


def entries(root: str) -> List[Entry]:
    """Everything below a folder, folders before what is in them; what vanishes meanwhile is left out."""
    return list(_below(root, ""))


def entry(path: str, name: str) -> Entry:
    """What is at `path`, listed as `name`; raise OSError."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return Entry(name, LINK, 0, 0, 0o777, os.readlink(path))
    kind = FOLDER if stat.S_ISDIR(found.st_mode) else FILE if stat.S_ISREG(found.st_mode) else ""
    size = found.st_size if kind == FILE else 0
    return Entry(name, kind, size, found.st_mtime_ns, stat.S_IMODE(found.st_mode), "")


def pack(out: Any, root: str, names: Sequence[str]) -> List[str]:
    """Write a tar stream of these; return those that are gone. Raise OSError or NodeError."""
    gone = []
    for name in names:
        try:
            _pack_one(out, os.path.join(root, name), name)
        except FileNotFoundError:
            gone.append(name)
    out.write(b"\0" * (2 * _BLOCK))
    return gone


def unpack(stream: Any, target: str) -> Tuple[int, int]:
    """Fill the empty folder `target` from a tar stream; return how many entries and bytes came.

    Raise NodeError (kind "tar") for a stream that is damaged or leads elsewhere, or OSError.
    """
    import tarfile

    count = size = 0
    folders = {target}
    try:
        with tarfile.open(
            fileobj=stream, mode="r|", bufsize=CHUNK, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            for member in tar:
                _place(tar, member, target, folders)
                count += 1
                size += member.size
        while stream.read(CHUNK):
            pass  # padding behind the end mark
    except tarfile.TarError as error:
        raise NodeError("tar", "the tar stream is damaged", str(error), "try again") from None
    return count, size


def _below(root: str, below: str) -> Iterator[Entry]:
    try:
        with os.scandir(os.path.join(root, below)) as found:
            names = sorted(one.name for one in found)
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(below, name)
        try:
            one = entry(os.path.join(root, path), path)
        except FileNotFoundError:
            continue
        if one.kind:
            yield one
        if one.kind == FOLDER:
            yield from _below(root, path)


def _pack_one(out: Any, path: str, name: str) -> None:
    import tarfile

    info = tarfile.TarInfo(name)
    found = entry(path, name)
    if found.kind == FILE:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
            now = os.fstat(file.fileno())  # it may have been replaced or have grown since it was listed
            info.size, info.mode = now.st_size, stat.S_IMODE(now.st_mode)
            info.pax_headers = {_NS: str(now.st_mtime_ns)}
            out.write(_header(info))
            _copy_exactly(file, out, info.size, name)
        out.write(b"\0" * (-info.size % _BLOCK))
        return
    info.mode = found.mode
    if found.kind == FOLDER:
        info.type = tarfile.DIRTYPE
    elif found.kind == LINK:
        info.type, info.linkname = tarfile.SYMTYPE, found.target
    else:
        raise FileNotFoundError(path)
    out.write(_header(info))


def _header(info: tarfile.TarInfo) -> bytes:
    import tarfile

    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


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


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, target: str, folders: Set[str]) -> None:
    """One member, never outside of `target`, never through a link, never over something."""
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts:
        raise _refuse(member, "it points out of its folder")
    if not parts:
        return  # the folder itself
    if member.isdir():
        _make_folders(target, parts, folders)
        return
    path = os.path.join(_make_folders(target, parts[:-1], folders), parts[-1])
    if member.issym():
        os.symlink(member.linkname, path)
        return
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise _refuse(member, "only files, folders and symbolic links are taken")
    _write(source, path, member.mode & 0o777 | 0o600)
    mtime_ns = int(member.pax_headers.get(_NS) or int(member.mtime) * 10**9)
    os.utime(path, ns=(mtime_ns, mtime_ns))  # by size and time is told what has not changed


def _make_folders(target: str, parts: List[str], folders: Set[str]) -> str:
    """The folder of these parts; each is one that we made, so none of them is a link."""
    path = target
    for part in parts:
        path = os.path.join(path, part)
        if path not in folders:
            os.mkdir(path)
            folders.add(path)
    return path


def _write(source: Any, path: str, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        while True:
            data = source.read(CHUNK)
            if not data:
                return
            file.write(data)


def _refuse(member: tarfile.TarInfo, why: str) -> NodeError:
    return NodeError("tar", f"the tar stream holds {member.name!r}", why, "try again")
