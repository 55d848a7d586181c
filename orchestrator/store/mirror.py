"""The controller's copy of a task's files: byte-identical prefixes, whose sizes are the resume cursors."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from orchestrator.store.folder import RunFolder

INDEX_RECORD = struct.Struct("<QQ")  # offset, node time in ns


class Mirror:
    """Appends what a node sends to the files of one task, exactly where it belongs."""

    def __init__(self, folder: RunFolder, attempt: str, slug: str) -> None:
        folder.log(attempt, slug).parent.mkdir(mode=0o700, exist_ok=True)
        self._log = _open(folder.log(attempt, slug))
        self._times = _open(folder.times(attempt, slug))
        self._report = _open(folder.report(attempt, slug))
        self.log_size = os.fstat(self._log).st_size
        self.report_size = os.fstat(self._report).st_size

    def add_log(self, offset: int, data: bytes, times: Iterable[tuple[int, int]]) -> None:
        """Append log bytes that stand at `offset` on the node.

        What is here already is skipped (a resumed stream may overlap); raise ValueError for a hole, and
        OSError without room: what found room stays, and counts.
        """
        records = b"".join(INDEX_RECORD.pack(start, when) for start, when in times)
        try:
            _append(self._log, self.log_size, offset, data)
        except OSError:
            self.log_size = os.fstat(self._log).st_size
            raise
        self.log_size = max(self.log_size, offset + len(data))
        if records:
            _write_all(self._times, records)

    def add_report(self, offset: int, data: bytes) -> None:
        """The same for the task's report."""
        try:
            _append(self._report, self.report_size, offset, data)
        except OSError:
            self.report_size = os.fstat(self._report).st_size
            raise
        self.report_size = max(self.report_size, offset + len(data))

    def close(self) -> None:
        for fd in (self._log, self._times, self._report):
            os.close(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _append(fd: int, size: int, offset: int, data: bytes) -> None:
    if offset > size:
        raise ValueError(f"bytes at {offset} would leave a hole after {size}")
    _write_all(fd, data[size - offset :])


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
