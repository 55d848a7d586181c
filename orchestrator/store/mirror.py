"""The controller's copy of a task's files: byte-identical prefixes, whose sizes are the resume cursors."""

from __future__ import annotations

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

ROOM = 256 << 10  # bytes that logs leave free on the disk: the run's story and its end need some


class Mirror:
    """Appends what a node sends to the files of one task, exactly where it belongs.

    Making one never fails, since the tasks run by then: a file that cannot be opened is tried again when
    there is something to write to it.
    """

    def __init__(self, folder: RunFolder, attempt: str, task: str) -> None:
        self.log = MirrorFile(folder.log(attempt, task))
        self._times = MirrorFile(folder.times(attempt, task))
        self.report = MirrorFile(folder.report(attempt, task))
        with contextlib.suppress(OSError):  # a task that prints nothing has a log, too
            self.log.append(b"")
        self.log.close()
        self._timed = _last_record(self._times.path)  # the offset in the last record; -1: none

    def add_log(self, offset: int, data: bytes, times: Iterable[tuple[int, int]]) -> None:
        """Append log bytes that stand at `offset` on the node.

        What is here already is skipped (a resumed stream may overlap); raise ValueError for a hole, and
        OSError without room: what found room stays, and counts.

        The times come first: whoever reads a byte finds when it was printed.
        """
        self.log.expect(offset)
        try:
            self._add_times(times)
        finally:
            self.log.add(offset, data)

    def _add_times(self, times: Iterable[tuple[int, int]]) -> None:
        """Append the records behind the last one: those of bytes that found no room come again."""
        new = sorted(record for record in times if record[0] > self._timed)
        if not new:
            return
        try:
            self._times.append(b"".join(starmap(RECORD.pack, new)), whole=RECORD.size)
        except OSError:
            self._timed = _last_record(self._times.path)
            raise
        self._timed = new[-1][0]

    def close(self) -> None:
        for file in (self.log, self._times, self.report):
            file.close()


class MirrorFile:
    """A file that is open from its first write on: many tasks never report, and descriptors are few."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self._fd = path, 0, -1
        with contextlib.suppress(OSError):  # of an earlier keeper; to be asked for once more is no harm
            self.size = path.stat().st_size

    def add(self, offset: int, data: bytes) -> None:
        """Append what stands at `offset` and is not here yet; raise ValueError for a hole, or OSError."""
        self.expect(offset)
        self.append(data[self.size - offset :])

    def expect(self, offset: int) -> None:
        """Raise ValueError where bytes at `offset` would leave a hole, or OSError."""
        self._open()
        if offset > self.size:
            raise ValueError(f"bytes at {offset} would leave a hole after {self.size}")

    def append(self, data: bytes, *, whole: int = 1) -> None:
        """Append what finds room, in pieces of `whole` bytes; raise OSError for the rest."""
        self._open()
        if data and not has_room(self.path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._cut(whole)  # what another keeper had begun as it was killed
        try:
            write_all(self._fd, data)
        finally:
            self._cut(whole)

    def _cut(self, whole: int) -> None:
        """Know the size, and take back a piece that is not whole."""
        self.size = os.fstat(self._fd).st_size
        if odd := self.size % whole:
            self.size -= odd
            os.ftruncate(self._fd, self.size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd < 0:
            if not self.path.parent.is_dir():
                for folder in (self.path.parent.parent, self.path.parent):
                    folder.mkdir(mode=0o700, exist_ok=True)
            self._fd = open_plain(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self.size = os.fstat(self._fd).st_size


def _last_record(times: Path) -> int:
    """The offset in the last whole record of an index; -1 where none can be read."""
    try:
        with os.fdopen(open_plain(times, os.O_RDONLY), "rb") as file:
            end = file.seek(0, os.SEEK_END) // RECORD.size * RECORD.size
            file.seek(max(0, end - RECORD.size))
            found = file.read(RECORD.size)
    except OSError:
        return -1
    return int(RECORD.unpack(found)[0]) if len(found) == RECORD.size else -1


def has_room(folder: Path) -> bool:
    """Return True where a disk has room for more than the end of a run's story."""
    try:
        return free_bytes(str(folder)) >= ROOM
    except OSError:
        return True
