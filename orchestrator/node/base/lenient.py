"""System calls for which a failure is an answer too."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room for what is to be written
FAILED = (errno.EIO, errno.EROFS)  # the disk has failed


def listed(folder: str) -> list[str]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link(path: str) -> str:
    """Return the target of a symbolic link; "" if there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def size(path: str) -> int:
    """Return the bytes of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def changed(path: str, otherwise: float) -> float:
    """Return when a file was modified, without following links; `otherwise` for one that just vanished."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return otherwise


def user(uid: int) -> str:
    """Return the name of a login, or its number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; numbers without a name stay numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def touch(path: str | int) -> None:
    """Mark something as in use, so that `clean` keeps it; root's files stay unchanged."""
    with suppress(OSError):
        os.utime(path)


def discard(path: str) -> None:
    """Remove a file if possible; a file that stays does no harm to the callers."""
    with suppress(OSError):
        os.unlink(path)
