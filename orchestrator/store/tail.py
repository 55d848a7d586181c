"""The last lines of a log, read from its end."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.plainfile import open_plain
from orchestrator.run.lines import Splitter

WINDOW = 65_536  # bytes from the end that are looked at


def last_lines(path: Path, count: int, window: int = WINDOW) -> tuple[str, ...]:
    """The last display lines of a log that are not blank; empty when there is no log."""
    data, whole = _end(path, window)
    if not whole:
        # A progress bar that redraws itself for an hour is one line: of it the end is better than nothing.
        lines = data.partition(b"\n")[2]
        data = lines if lines.strip() else data
    splitter = Splitter("", "")
    texts = [line.text for line in (*splitter.feed(data), *splitter.end())]
    return tuple(text for text in texts if text.strip())[-count:]


def last_bytes(path: Path) -> bytes:
    """The whole lines at the end of a file; empty when there is no file."""
    data, whole = _end(path, WINDOW)
    return data if whole else data.partition(b"\n")[2]


def _end(path: Path, window: int) -> tuple[bytes, bool]:
    """The last bytes of a file, and whether they are all of it; nothing where there is none."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - window))
            return file.read(), size <= window
    except OSError:
        return b"", True
