"""Folders as lists of entries; symbolic links are kept as they are and never followed."""

from __future__ import annotations

import os
import stat
from typing import Callable, Iterator, NamedTuple

from ..base.fault import NodeError
from .below import MOST_LEVELS, Below, is_no_folder, shortened

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
                why = f"has more than {MOST_ENTRIES:,} files in {root}"
                raise NodeError("files", why, "too many", "name a part")
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
