"""Folders and files of a host as lists of entries, and parts of their content for the controller.

Symbolic links are kept as they are and never followed. A part is requested by name, offset and length, and
by the size and time that the file was listed with: one that has changed since is not sent, unless it may be
`growing` and is longer. Whether it was a log or was written again, only its digest shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any, Callable, Iterator, NamedTuple

from ..base.fault import NodeError, reason
from ..base.paths import absolute
from ..serve.agent import Agent, Request
from .below import MOST_LEVELS, Below, is_no_folder, parts_of

FILE, FOLDER, LINK = "file", "folder", "link"
CHUNK = 1 << 20  # bytes of content in one reply
ODD = "odd"  # a socket, a pipe or a device
MOST_ENTRIES = 200_000  # that one listing can contain


class Entry(NamedTuple):
    """One entry below a folder; sent as a line of JSON."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    mode: int
    target: str  # of a link
    inode: int

    def same(self, other: Entry) -> bool:
        """Return True if nothing has to be sent to turn one into the other."""
        if self.kind != other.kind or self.kind == FOLDER:
            return self.kind == other.kind
        if self.kind == LINK:
            return self.target == other.target
        mine = (self.size, self.mtime_ns, self.mode & 0o100)
        return mine == (other.size, other.mtime_ns, other.mode & 0o100)


def entries(root: str) -> list[Entry]:
    """List everything below a folder, folders first, without what vanishes meanwhile; raise OSError."""
    listed: list[Entry] = []
    top = os.path.realpath(root)
    for path, folders, files, fd in os.fwalk(top, onerror=_unless_it_vanished):
        below = path[len(top) :].lstrip("/")
        folders.sort()
        for name in sorted([*folders, *files]):
            try:
                listed.append(entry_at(name, fd, os.path.join(below, name)))
            except FileNotFoundError:
                continue
        if below.count("/") >= MOST_LEVELS:
            folders.clear()
    return listed


def _unless_it_vanished(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError) and not is_no_folder(error):
        raise error


def walk(root: str, enter: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield everything below a folder of ours except the folders that are entered; raise OSError."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(os.path.join(root, below)) as items:
            for item in items:
                path = f"{below}/{item.name}" if below else item.name
                if item.is_dir(follow_symlinks=False) and enter(path):
                    waiting.append(path)
                else:
                    yield path, item


def entry_at(path: str, folder: int | None, name: str) -> Entry:
    """Return the entry at `path`, possibly in an open folder, as `name`; raise OSError."""
    status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return Entry(name, LINK, 0, 0, 0o777, os.readlink(path, dir_fd=folder), status.st_ino)
    kind = FOLDER if stat.S_ISDIR(status.st_mode) else FILE if stat.S_ISREG(status.st_mode) else ODD
    size = status.st_size if kind == FILE else 0
    return Entry(name, kind, size, time_of(status), stat.S_IMODE(status.st_mode), "", status.st_ino)


def time_of(status: os.stat_result) -> int:
    """Return when a file was modified, in ns; for times before 1970 or after 2262 the nearest."""
    return min(max(0, status.st_mtime_ns), (1 << 63) - 1)


MOST_LISTED = 32 << 20  # bytes of a listing


def listing(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Return what a path is, and the entries of a folder. A link that is named directly is followed."""
    path = absolute(request["path"])
    real = os.path.realpath(path)
    try:
        if os.path.isdir(real):
            kind, root, mark = FOLDER, real, request.get("holding", "")
            items = entries(real)
            listed = [item for item in items if item.kind == FOLDER or mark in os.path.basename(item.path)]
        elif os.path.lexists(real):
            root, name = os.path.split(real)
            listed = [entry_at(real, None, name)]
            kind = listed[0].kind
            if kind != FILE:
                raise NodeError("files", f"cannot read {path}", "it is neither a folder nor a file")
        else:
            return {"kind": "", "root": real}, b""
    except OSError as error:
        raise NodeError("files", f"cannot read {path}", reason(error)) from None
    lines = "\n".join(json.dumps(entry, separators=(",", ":")) for entry in listed).encode()
    levels = max((entry.path.count("/") + 1 for entry in listed), default=0)
    if len(lines) > MOST_LISTED or len(listed) > MOST_ENTRIES or levels > MOST_LEVELS:
        why = f"its list would have {len(listed):,} names on {levels} levels, and {len(lines):,} bytes"
        raise NodeError("files", f"has too many files in {path} to list", why, "name a folder or file in it")
    return {"kind": kind, "root": root}, lines


def get(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Return parts of files in sequence; `gone` are the positions of those that have changed.

    `grown` are those of files that are longer than listed.
    """
    root, growing, data = str(request["root"]), bool(request["growing"]), bytearray()
    changed: list[int] = []
    grown: list[int] = []
    try:
        with Below(root) as top:
            for place, (name, at, length, *listed) in enumerate(json.loads(request.payload)):
                part = _part(top, name, at, length, listed, growing=growing)
                if part is None:
                    changed.append(place)
                else:
                    data += part.data
                    grown += [place] if part.has_grown else []
    except OSError as error:
        raise NodeError("files", f"cannot read {error.filename or root}", reason(error)) from None
    return {"gone": changed, "grown": grown}, bytes(data)


def digest(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Return digests of the first bytes of files; None for one that has fewer, or cannot be read."""
    with Below(str(request["root"])) as top:
        return {"digests": [digest_below(top, name, size) for name, size in json.loads(request.payload)]}, b""


def digest_below(top: Below, name: str, size: int) -> str | None:
    *above, last = parts_of(name)
    made = hashlib.sha256()
    try:
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=top.folder(above))
        with open(fd, "rb", buffering=0) as file:
            while size and (data := file.read(min(size, CHUNK))):
                made.update(data)
                size -= len(data)
    except OSError:
        return None
    return None if size else made.hexdigest()


class _Part(NamedTuple):
    data: bytes
    has_grown: bool


def _part(top: Below, name: str, at: int, length: int, listed: list[int], *, growing: bool) -> _Part | None:
    """Read a part of a file; return None if it has changed since it was listed."""
    *above, last = parts_of(name)
    try:
        folder = top.folder(above)
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_no_folder(error):
            return None
        raise
    try:
        now = os.fstat(fd)
        # A log becomes longer; another file in its place, or one of the same length, was written again.
        has_grown = growing and now.st_size > listed[0] and now.st_ino == listed[2]
        same = [now.st_size, time_of(now), now.st_ino] == listed
        if not stat.S_ISREG(now.st_mode) or not (same or has_grown):
            return None
        data = os.pread(fd, length, at)
    finally:
        os.close(fd)
    return _Part(data, has_grown) if len(data) == length else None
