"""Questions to the machine where a failure is an answer, too."""

from __future__ import annotations

import errno
import os
import signal

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room for what is to be written


def listed(folder: str) -> list[str]:
    """Return what is in a folder; nothing for one that cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link(path: str) -> str:
    """Where a symbolic link leads; "" for none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def size(path: str) -> int:
    """The bytes of a file; 0 for none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def changed(path: str, otherwise: float) -> float:
    """When a file was changed, links not followed; `otherwise` for one that somebody takes away just now."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return otherwise


def user(uid: int) -> str:
    """The name of a login, or its number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; numbers without a name stay numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def touch(path: str | int) -> None:
    """Say that something is in use, so that `clean` leaves it; what is root's stays as it is."""
    try:
        os.utime(path)
    except OSError:
        pass


def discard(path: str) -> None:
    """Remove a file where that can be done; what cannot be removed does no harm where this is called."""
    try:
        os.unlink(path)
    except OSError:
        pass
