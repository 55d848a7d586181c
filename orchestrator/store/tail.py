"""The last lines of a log, read from its end."""

from __future__ import annotations

from pathlib import Path

from orchestrator.lines import Splitter

_WINDOW = 65_536  # bytes from the end that are looked at


def last_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last display lines of a log that are not blank; empty when there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _WINDOW))
            data = file.read()
    except OSError:
        return ()
    if size > _WINDOW:
        # A progress bar that redraws itself for an hour is one line: of it the end is better than nothing.
        whole = data.partition(b"\n")[2]
        data = whole if whole.strip() else data
    splitter = Splitter("", "")
    lines = [line.text for line in (*splitter.feed(data), *splitter.end())]
    return tuple(line for line in lines if line.strip())[-count:]
