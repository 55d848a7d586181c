"""File locks with flock, because such a lock ends with its last holder, in whatever way that ends."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator

from .fault import NodeError
from .lenient import discard

GLANCE = 0.02  # seconds; a mere check holds the lock for less


def take(fd: int, patience: float = 0.0) -> bool:
    """Take a lock within `patience` seconds; return False if it is held."""
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
    """Return a descriptor that holds the lock of a file, which is created; None if it stays held.

    A user may remove the file while it is not held: a lock on a file without a name does not count.
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
    """Return True if the lock of a file is held; a missing file has no holder.

    Raise OSError if that is unknown: a task is not dead because we are out of descriptors.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared: two processes that check must not mistake each other for a holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
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
            f"another process has held {path} for {patience / 60:.0f} minutes",
            f"`fuser {shlex.quote(path)}` shows who, on that machine",
        )
    try:
        yield
    finally:
        discard(path)  # while it is held: a waiting process creates another one
        os.close(fd)
