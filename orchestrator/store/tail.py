"""The last lines of a log, read from its end."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.plainfile import open_plain
from orchestrator.run.lines import Splitter

WINDOW = 65_536  # bytes from the end that are looked at


def last_lines(path: Path, count: int, window: int = WINDOW) -> tuple[str, ...]:
    """The last display lines of a log that are not blank; empty when there is no log."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - window))
            data = file.read()
    except OSError:
        return ()
    if size > window:
        # A progress bar that redraws itself for an hour is one line: of it the end is better than nothing.
        whole = data.partition(b"\n")[2]
        data = whole if whole.strip() else data
    splitter = Splitter("", "")
    lines = [line.text for line in (*splitter.feed(data), *splitter.end())]
    return tuple(line for line in lines if line.strip())[-count:]


def last_bytes(path: Path, window: int = WINDOW) -> bytes:
    """The whole lines at the end of a file; empty when there is no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - window))
            data = file.read()
    except OSError:
        return b""
    return data if size <= window else data.partition(b"\n")[2]
