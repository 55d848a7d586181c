"""Locks on files: flock, because such a lock ends with its last holder, however that one ends."""

from __future__ import annotations

import fcntl
import os
import shlex
import time

from . import procs
from .fault import NodeError

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
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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


class Held:
    """In a `with`: hold a lock file. Wait `patience` seconds for whoever has it, then raise NodeError."""

    def __init__(self, path: str, patience: float, kind: str, what: str) -> None:
        self._path = path
        self._patience = patience
        self._error = (kind, f"waited too long for {what}")

    def __enter__(self) -> None:
        held = hold(self._path, self._patience)
        if held is None:
            raise NodeError(
                *self._error,
                f"somebody has held {self._path} for {self._patience / 60:.0f} minutes",
                _who_does(str(self._path)),
            )
        self._fd = held

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _who_does(path: str) -> str:
    """Return what shows the processes that hold a lock, or wait for it as we did."""
    pids = procs.holding(path)
    if pids:
        return f"`ps -f -p {','.join(map(str, pids))}` shows who"
    return f"`fuser {shlex.quote(path)}` shows who, as root on the machine that does it"
