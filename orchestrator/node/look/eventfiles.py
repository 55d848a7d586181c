"""TensorBoard's event files of a run, piece by piece: what has come since the controller last asked.

Only names that TensorBoard itself would read, only regular files, nothing through a link. Nothing is kept
here between two questions: the controller says what it has.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from ..disk.below import MOST_LEVELS
from ..disk.listing import CHUNK
from ..serve.agent import Agent, Request

MARK = "tfevents"  # TensorBoard reads whatever has it in its name
MOST = 4096  # files of a run on one host
_FOLDERS = 100_000


def grown(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Return at most a chunk of what the controller, which has `known` (path -> size), does not have."""
    known = request["known"]
    root = os.path.realpath(os.path.expanduser(str(request["root"])))
    files: list[dict[str, Any]] = []
    data = b""
    behind = count = folders = 0
    if not os.path.isdir(root):
        return {"files": [], "behind": 0, "more": False}, b""
    for place, below, names, fd in os.fwalk(root, follow_symlinks=False):
        below.sort()
        if place.count("/") - root.count("/") >= MOST_LEVELS - 2:
            below.clear()
        folders += 1
        if folders > _FOLDERS or count > MOST:
            break
        for name in sorted(names):
            path = os.path.relpath(os.path.join(place, name), root)
            size = _size(name, fd) if MARK in name and _is_text(path) else None
            if size is None:
                continue
            count += 1
            if count > MOST:
                break
            had = int(known.get(path, 0))
            start = had if had <= size else 0  # it was written anew
            piece = _read(name, fd, start, min(size - start, CHUNK - len(data)))
            if piece or start < had:
                files.append({"path": path, "offset": start, "length": len(piece)})
                data += piece
            behind += size - start - len(piece)
    return {"files": files, "behind": behind, "more": count > MOST}, data


def _size(name: str, folder: int) -> int | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _read(name: str, folder: int, offset: int, length: int) -> bytes:
    """Return what is there of that piece; nothing of a file that cannot be read, or is none any more."""
    if length <= 0:
        return b""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.pread(fd, length, offset) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _is_text(path: str) -> bool:
    """Return True if JSON can say it, and the controller take it."""
    if len(path) > 4095:
        return False
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
