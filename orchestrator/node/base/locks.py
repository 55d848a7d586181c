"""Locks on files: flock, because such a lock ends with its last holder, however that one ends."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator

from .fault import NodeError
from .lenient import discard

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


def hold(path: str, patience: float) -> int | None:
    """A descriptor that holds the lock of a file, which is made; None when somebody has it for too long.

    A person may remove the file while nobody holds it: a lock on one that has no name any more is none.
    """
    deadline = time.monotonic() + patience
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if not take(fd, max(0.0, deadline - time.monotonic())):
                os.close(fd)
                return None
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)


def is_taken(path: str) -> bool:
    """Return True if somebody holds the lock of a file; nobody holds that of a file that is not there.

    Raise OSError when it cannot be told: a task is not dead because we have no descriptor left.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not take us for a holder
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


@contextmanager
def held(path: str, patience: float, what: str) -> Iterator[None]:
    """Hold a lock file, as far as its file system has locks; raise NodeError after too long."""
    try:
        fd = hold(path, patience)
    except OSError:
        yield
        return
    if fd is None:
        import shlex

        raise NodeError(
            "busy",
            f"waited too long for {what}",
            f"somebody has held {path} for {patience / 60:.0f} minutes",
            f"`fuser {shlex.quote(path)}` shows who, on the machine that does it",
        )
    try:
        yield
    finally:
        discard(path)  # while it is held: who waits for it makes another one
        os.close(fd)
