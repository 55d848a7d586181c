"""Takes a task's name, once and for all: what makes a second start a no-op."""

from __future__ import annotations

import errno
import fcntl
import os
import time

from ..base import procs
from ..base.fault import NodeError
from ..base.paths import TaskFolder, make_private
from ..base.tuples import NamedTuple
from ..disk.removing import remove
from . import state


class Claim(NamedTuple):
    """What the claimer holds open and hands on to guard and supervisor."""

    lock: int
    control: int

    def close(self) -> None:
        for fd in self:
            if fd >= 0:
                os.close(fd)


def take(folder: TaskFolder) -> Claim | None:
    """Make the task's folder with its lock held and its FIFO open; None when it is taken.

    It is made beside its place and renamed: whoever sees it sees all of it, and never a free lock.
    """
    parent = os.path.dirname(folder.path)
    made = folder._replace(path=os.path.join(parent, f".{folder.slug}.{os.urandom(6).hex()}"))
    claim = Claim(-1, -1)
    try:
        make_private(parent)
        os.mkdir(made.path, 0o700)
        claim = claim._replace(lock=_locked(made.lock))
        os.mkfifo(made.control, 0o600)
        claim = claim._replace(control=os.open(made.control, os.O_RDWR | os.O_NONBLOCK))
        for path in (made.log, made.idx, made.report):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        state.set_aside(made)
        state.write(made, state.new(folder, procs.incarnation(), time.time_ns()))
        os.rename(made.path, folder.path)
    except OSError as error:
        claim.close()
        remove(made.path)  # what cannot be removed stays hidden and harmless
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and os.path.exists(folder.path):
            return None
        raise NodeError(
            "state",
            f"the folder of {folder.task} cannot be made",
            f"{folder.path}: {error.strerror or error}",
            "make room there, or set `state` to a folder on another local disk",
        ) from None
    return claim


def _locked(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd
