"""TensorBoard's event files of a run, piece by piece: what has come since the controller last asked.

Only names that TensorBoard itself would read, only regular files, nothing through a link. Nothing is kept
here between two questions: the controller says what it has.
"""

from __future__ import annotations

import os
import stat

from ..base.annotations import Any, Iterator
from ..disk.below import MOST_LEVELS, Below, is_no_folder
from ..disk.tarstream import CHUNK
from ..serve.agent import Agent, Request

MARK = "tfevents"  # TensorBoard reads whatever has it in its name
MOST = 4096  # files of a run on one host
_FOLDERS = 100_000


def grown(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """At most a chunk of what the controller does not have of `known` (path -> size) and of new files."""
    known = request["known"]
    root = os.path.realpath(os.path.expanduser(str(request["root"])))
    files: list[dict[str, Any]] = []
    data = b""
    behind = found = 0
    if not os.path.isdir(root):
        return {"files": [], "behind": 0, "more": False}, b""
    with Below(root) as top:
        for parts, name, size in _event_files(top):
            found += 1
            if found > MOST:
                break
            path = "/".join((*parts, name))
            had = int(known.get(path, 0))
            start = had if had <= size else 0  # it was written anew
            piece = _read(top, parts, name, start, min(size - start, CHUNK - len(data)))
            if piece or start < had:
                files.append({"path": path, "offset": start, "length": len(piece)})
                data += piece
            behind += size - start - len(piece)
    return {"files": files, "behind": behind, "more": found > MOST}, data


def _event_files(top: Below) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """Each with its folder and size; a folder with its files before those in it."""
    waiting: list[tuple[str, ...]] = [()]
    seen = 0
    while waiting and seen < _FOLDERS:
        parts = waiting.pop()
        seen += 1
        try:
            folder = top.folder(parts)
            with os.scandir(folder) as entries:
                here = sorted((one.name, one.is_dir(follow_symlinks=False)) for one in entries)
            sizes = [
                (name, os.stat(name, dir_fd=folder, follow_symlinks=False))
                for name, is_folder in here
                if MARK in name and not is_folder and _is_text(name)
            ]
        except OSError as error:
            if isinstance(error, (FileNotFoundError, PermissionError)) or is_no_folder(error):
                continue  # gone, exchanged, or nobody's business
            raise
        if len(parts) < MOST_LEVELS - 1:
            waiting += [(*parts, name) for name, is_folder in reversed(here) if is_folder and _is_text(name)]
        for name, found in sizes:
            if stat.S_ISREG(found.st_mode):
                yield parts, name, found.st_size


def _read(top: Below, parts: tuple[str, ...], name: str, offset: int, length: int) -> bytes:
    """What is there of that piece; nothing of a file that cannot be read, or is none any more."""
    if length <= 0:
        return b""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=top.folder(parts))
    except OSError:
        return b""
    try:
        return os.pread(fd, length, offset) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _is_text(name: str) -> bool:
    """Whether JSON can say it."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
