"""Locks on files: flock, because such a lock ends with its last holder, however that one ends."""

from __future__ import annotations

import fcntl
import os
import time

GLANCE = 0.02  # seconds; whoever only looks who holds a lock has it for less


def take(fd: int, patience: float = 0.0) -> bool:
    """Take a lock within `patience` seconds; False when somebody has it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.005)


def is_taken(path: str) -> bool:
    """Whether somebody holds the lock of a file; nobody holds that of a file that is not there.

    Raise OSError when it cannot be told: a task is not dead because we have no descriptor left.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not take us for a holder
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
