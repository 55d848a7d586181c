"""The controller's copy of a task's files: byte-identical prefixes, whose sizes are the resume positions."""

import contextlib
import errno
import os
from collections.abc import Iterable
from itertools import starmap
from pathlib import Path

from orchestrator.node.base.descriptors import write_all
from orchestrator.node.base.paths import free_bytes
from orchestrator.node.task.output import RECORD
from orchestrator.plainfile import open_plain
from orchestrator.store.folder import RunFolder

ROOM = 256 << 10  # bytes that logs leave free on the disk for the run's events and its end


class Mirror:
    """Appends what a node sends to the files of one task, at exactly the right offset.

    What users truncate or remove meanwhile is an OSError too, and is fetched again from its beginning.
    The constructor never fails, because the tasks are already running: a file that cannot be opened is
    retried when there is something to write to it.
    """

    def __init__(self, folder: RunFolder, attempt: str, task: str) -> None:
        self.log = MirrorFile(folder.log(attempt, task))
        self._times = MirrorFile(folder.times(attempt, task))
        self.report = MirrorFile(folder.report(attempt, task))
        with contextlib.suppress(OSError):  # a task that prints nothing has a log too
            self.log.append(b"")
        self.log.close()
        self._timed = _last_record(self._times.path)  # the offset in the last record; -1: none

    def add_log(self, offset: int, data: bytes, times: Iterable[tuple[int, int]]) -> None:
        """Append log bytes that are at `offset` on the node.

        Bytes that exist here are skipped (a resumed stream may overlap). Raise ValueError for a gap, and
        OSError if the disk is full: what was stored stays, and counts.

        The times come first, so that a reader of a byte always finds its time.
        """
        self.log.expect(offset)
        # Those of bytes that were not stored come again.
        new = sorted(record for record in times if record[0] > self._timed)
        try:
            if new:
                self._times.append(b"".join(starmap(RECORD.pack, new)), whole=RECORD.size)
                self._timed = new[-1][0]
        except OSError:
            self._timed = _last_record(self._times.path)
            raise
        finally:
            self.log.add(offset, data)

    def close(self) -> None:
        for file in (self.log, self._times, self.report):
            file.close()


class MirrorFile:
    """A file that stays open after its first write: many tasks never report, and descriptors are limited."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self._fd = path, 0, -1
        with contextlib.suppress(OSError):  # of an earlier keeper; requesting it again is harmless
            self.size = path.stat().st_size

    def add(self, offset: int, data: bytes) -> None:
        """Append the new part of what is at `offset`; raise ValueError for a gap, or OSError."""
        self.expect(offset)
        self.append(data[self.size - offset :])

    def expect(self, offset: int) -> None:
        """Raise ValueError if bytes at `offset` would leave a gap, or OSError."""
        self._open()
        if offset > self.size:
            raise ValueError(f"bytes at {offset} would leave a hole after {self.size}")

    def append(self, data: bytes, *, whole: int = 1) -> None:
        """Append as much as the disk accepts, in pieces of `whole` bytes; raise OSError for the rest."""
        self._open()
        if data and not has_room(self.path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._cut(whole)  # begun by another keeper when it was killed
        try:
            write_all(self._fd, data)
        finally:
            self._cut(whole)

    def _cut(self, whole: int) -> None:
        """Determine the size, and cut off an incomplete piece."""
        self.size = os.fstat(self._fd).st_size
        if odd := self.size % whole:
            self.size -= odd
            os.ftruncate(self._fd, self.size)

    def _is_cut(self) -> bool:
        """Return True if the file was truncated or removed, for example to make room."""
        status = os.fstat(self._fd)
        return status.st_size < self.size or (not status.st_nlink and self.path.parent.is_dir())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd >= 0 and self._is_cut():
            self.close()
            self._open()
            raise OSError(errno.ESTALE, "a log was truncated or removed", str(self.path))
        if self._fd < 0:
            if not self.path.parent.is_dir():
                for folder in (self.path.parent.parent, self.path.parent):
                    folder.mkdir(mode=0o700, exist_ok=True)
            self._fd = open_plain(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self.size = os.fstat(self._fd).st_size


def _last_record(times: Path) -> int:
    """Return the offset in the last complete record of an index; -1 if none can be read."""
    try:
        with os.fdopen(open_plain(times, os.O_RDONLY), "rb") as file:
            end = file.seek(0, os.SEEK_END) // RECORD.size * RECORD.size
            file.seek(max(0, end - RECORD.size))
            record = file.read(RECORD.size)
    except OSError:
        return -1
    return int(RECORD.unpack(record)[0]) if len(record) == RECORD.size else -1


def has_room(folder: Path) -> bool:
    """Return True if the disk has more room than the run's last events need."""
    try:
        return free_bytes(str(folder)) >= ROOM
    except OSError:
        return True
