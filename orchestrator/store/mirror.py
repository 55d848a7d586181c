"""The controller's copy of a task's files: byte-identical prefixes, whose sizes are the resume cursors."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from orchestrator.store.folder import RunFolder

INDEX_RECORD = struct.Struct("<QQ")  # offset, node time in ns


class Mirror:
    """Appends what a node sends to the files of one task, exactly where it belongs.

    Making one never fails, since the tasks run by then: a file that cannot be opened is tried again when
    there is something to write to it.
    """

    def __init__(self, folder: RunFolder, attempt: str, slug: str) -> None:
        self._log = _File(folder.log(attempt, slug))
        self._times = _File(folder.times(attempt, slug))
        self._report = _File(folder.report(attempt, slug))

    @property
    def log_size(self) -> int:
        return self._log.size

    @property
    def report_size(self) -> int:
        return self._report.size

    def add_log(self, offset: int, data: bytes, times: Iterable[tuple[int, int]]) -> None:
        """Append log bytes that stand at `offset` on the node.

        What is here already is skipped (a resumed stream may overlap); raise ValueError for a hole, and
        OSError without room: what found room stays, and counts.
        """
        records = b"".join(INDEX_RECORD.pack(start, when) for start, when in times)
        self._log.add(offset, data)
        if records:
            self._times.append(records)

    def add_report(self, offset: int, data: bytes) -> None:
        """The same for the task's report."""
        self._report.add(offset, data)

    def close(self) -> None:
        for file in (self._log, self._times, self._report):
            file.close()


class _File:
    """A file that is open from its first write on: many tasks never report, and descriptors are few."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._fd = -1
        try:
            self._open()  # empty at first: a task that prints nothing has a log, too
        except OSError:
            with contextlib.suppress(OSError):  # of an earlier keeper; to be asked for once more is no harm
                self.size = path.stat().st_size
        self.close()

    def add(self, offset: int, data: bytes) -> None:
        """Append what stands at `offset` and is not here yet; raise ValueError for a hole, or OSError."""
        self._open()
        if offset > self.size:
            raise ValueError(f"bytes at {offset} would leave a hole after {self.size}")
        self.append(data[self.size - offset :])

    def append(self, data: bytes) -> None:
        self._open()
        try:
            _write_all(self._fd, data)
        finally:
            self.size = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd < 0:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            self.size = os.fstat(self._fd).st_size


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
