"""Folders and files of a host as lists of entries, and parts of their content for the controller.

Symbolic links are kept as they are and never followed. A part is asked for by name, offset and length, and by
the size and time that the file was listed with: a file that is another one by then is not given.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Callable, Iterator, NamedTuple

from ..base.fault import NodeError, reason
from ..base.paths import absolute
from ..serve.agent import Agent, Request
from .below import MOST_LEVELS, Below, is_no_folder, parts_of

FILE, FOLDER, LINK = "file", "folder", "link"
CHUNK = 1 << 20  # bytes of content in one answer
ODD = "odd"  # a socket, a pipe or a device
MOST_ENTRIES = 200_000  # that one listing can name


class Entry(NamedTuple):
    """One thing below a folder; as a line of JSON it crosses the wire."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    mode: int
    target: str  # of a link

    def same(self, other: Entry) -> bool:
        """Tell whether nothing has to be sent to make one from the other."""
        if self.kind != other.kind or self.kind == FOLDER:
            return self.kind == other.kind
        if self.kind == LINK:
            return self.target == other.target
        mine = (self.size, self.mtime_ns, self.mode & 0o100)
        return mine == (other.size, other.mtime_ns, other.mode & 0o100)


def entries(root: str) -> list[Entry]:
    """List everything below a folder, folders before what is in them; what vanishes meanwhile is left out.

    Raise OSError.
    """
    found: list[Entry] = []
    top = os.path.realpath(root)
    for path, folders, files, fd in os.fwalk(top, onerror=_unless_it_vanished):
        below = path[len(top) :].lstrip("/")
        folders.sort()
        for name in sorted([*folders, *files]):
            try:
                found.append(entry_at(name, fd, os.path.join(below, name)))
            except FileNotFoundError:
                continue
        if below.count("/") >= MOST_LEVELS:
            folders.clear()
    return found


def _unless_it_vanished(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError) and not is_no_folder(error):
        raise error


def walk(root: str, enter: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Give everything below a folder of ours but the folders that are entered; raise OSError."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(os.path.join(root, below)) as found:
            for one in found:
                path = f"{below}/{one.name}" if below else one.name
                if one.is_dir(follow_symlinks=False) and enter(path):
                    waiting.append(path)
                else:
                    yield path, one


def entry_at(path: str, folder: int | None, name: str) -> Entry:
    """List what is at `path`, perhaps in an open folder, as `name`; raise OSError."""
    found = os.stat(path, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return Entry(name, LINK, 0, 0, 0o777, os.readlink(path, dir_fd=folder))
    kind = FOLDER if stat.S_ISDIR(found.st_mode) else FILE if stat.S_ISREG(found.st_mode) else ODD
    size = found.st_size if kind == FILE else 0
    return Entry(name, kind, size, time_of(found), stat.S_IMODE(found.st_mode), "")


def time_of(found: os.stat_result) -> int:
    """When a file was changed, in ns; of what is before 1970 or beyond 2262 the nearest."""
    return min(max(0, found.st_mtime_ns), (1 << 63) - 1)


MOST_LISTED = 32 << 20  # bytes of a listing


def listing(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Tell what a path is, and the entries of a folder. A link that is named itself is followed."""
    path = absolute(request["path"])
    real = os.path.realpath(path)
    try:
        if os.path.isdir(real):
            kind, root, mark = FOLDER, real, request.get("holding", "")
            found = [one for one in entries(real) if one.kind == FOLDER or mark in os.path.basename(one.path)]
        elif os.path.lexists(real):
            root, name = os.path.split(real)
            found = [entry_at(real, None, name)]
            kind = found[0].kind
            if kind != FILE:
                raise NodeError("files", f"cannot read {path}", "it is neither a folder nor a file")
        else:
            return {"kind": "", "root": real}, b""
    except OSError as error:
        raise NodeError("files", f"cannot read {path}", reason(error)) from None
    told = "\n".join(json.dumps(one, separators=(",", ":")) for one in found).encode()
    levels = max((one.path.count("/") + 1 for one in found), default=0)
    if len(told) > MOST_LISTED or len(found) > MOST_ENTRIES or levels > MOST_LEVELS:
        why = f"its list would have {len(found):,} names on {levels} levels, and {len(told):,} bytes"
        raise NodeError("files", f"has more in {path} than one list can name", why, "name a part")
    return {"kind": kind, "root": root}, told


def get(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Give parts of files, one after the other; `gone` are the places of those that have changed.

    With `growing` a file may have become longer.
    """
    root, data, gone = str(request["root"]), bytearray(), []
    try:
        with Below(root) as top:
            for place, (name, at, length, size, mtime_ns) in enumerate(json.loads(request.payload)):
                part = _part(top, name, at, length, (size, mtime_ns), growing=bool(request["growing"]))
                if part is None:
                    gone.append(place)
                else:
                    data += part
    except OSError as error:
        raise NodeError("files", f"cannot read {error.filename or root}", reason(error)) from None
    return {"gone": gone}, bytes(data)


def _part(
    top: Below, name: str, at: int, length: int, listed: tuple[int, int], *, growing: bool
) -> bytes | None:
    """Read a part of a file; None where it is another one than was listed."""
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
        if not stat.S_ISREG(now.st_mode) or now.st_size < listed[0]:
            return None
        if not growing and (now.st_size, time_of(now)) != listed:
            return None
        data = os.pread(fd, length, at)
    finally:
        os.close(fd)
    return data if len(data) == length else None
