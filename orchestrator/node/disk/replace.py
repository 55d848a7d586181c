"""Replacing a folder or file as a whole: made beside it under a hidden name, then given its name.

.<name>.incoming-<id>     what is being filled
.<name>.outgoing-<id>     what it replaces, for a moment
"""

from __future__ import annotations

import os
import shutil
import stat

from ..base.annotations import Sequence
from .below import Below, parts_of
from .removing import remove, remove_stale

_STALE = 24 * 3600.0  # seconds after which what is hidden there was given up
_RACES = 8  # others that may replace the same folder meanwhile: several hosts on one shared disk
INCOMING = ".incoming-"
_OUTGOING = ".outgoing-"


def beside(target: str) -> str:
    """An empty hidden folder on the same disk as `target`, which need not exist; raise OSError."""
    above, name = os.path.split(os.path.abspath(target))
    os.makedirs(above, exist_ok=True)
    remove_stale(above, (f".{name}{INCOMING}", f".{name}{_OUTGOING}"), _STALE)
    incoming = os.path.join(above, f".{name}{INCOMING}{os.urandom(6).hex()}")
    os.mkdir(incoming)
    return incoming


def keep(target: str, incoming: str, names: Sequence[str]) -> None:
    """Take unchanged files from what is there, without a second copy where the disk can.

    Raise OSError, or NodeError for a name that is none; no link on the way is followed, on either side.
    """
    if not names:
        return
    with Below(target) as old, Below(incoming, made=True) as new:
        for name in names:
            *above, last = parts_of(name)
            _keep_one(last, old.folder(above), new.folder(above, make=True))


def _keep_one(name: str, old: int, new: int) -> None:
    try:
        os.link(name, name, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
        return
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError):
        pass  # a disk without hard links
    found = os.stat(name, dir_fd=old, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=old), name, dir_fd=new)
        return
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=old)
    with open(source, "rb") as file:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(
            os.open(name, flags, stat.S_IMODE(found.st_mode) & 0o777 | 0o600, dir_fd=new), "wb"
        ) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def swap(incoming: str, target: str) -> None:
    """Give `incoming` its name; what had it is removed. Raise OSError with the old one in its place."""
    above, name = os.path.split(incoming)
    outgoing = os.path.join(above, name.replace(INCOMING, _OUTGOING))
    for _ in range(_RACES):
        moved = _move(target, outgoing)
        try:
            os.rename(incoming, target)
        except OSError:
            if moved and not os.path.lexists(target):
                os.rename(outgoing, target)
                raise
            if not os.path.lexists(target):
                raise
        else:
            remove(outgoing)
            return
        remove(outgoing)
    raise OSError(16, "others replace it all the time", target)


def swap_file(incoming: str, name: str, target: str) -> None:
    """Give the one file in `incoming` its name, which may be a file's and not a folder's; raise OSError."""
    (last,) = parts_of(name)[-1:]
    os.replace(os.path.join(incoming, last), target)
    remove(incoming)


def take_away(target: str) -> None:
    """Remove a folder or file, at once for all who look; nothing may be there. Raise OSError."""
    above, name = os.path.split(target)
    outgoing = os.path.join(above, f".{name}{_OUTGOING}{os.urandom(6).hex()}")
    if _move(target, outgoing):
        remove(outgoing)


def _move(source: str, target: str) -> bool:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        return False
    return True
