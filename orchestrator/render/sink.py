"""Where a renderer writes: a stream that may be a closed pipe, a closed terminal or not blocking."""

from __future__ import annotations

import errno
import os
import select
from typing import TextIO

from orchestrator.node.base.lenient import FULL


class DisplayGoneError(BrokenPipeError):
    """Nobody can see what we write any more (`| head` ended, the terminal was closed).

    The run goes on: whoever catches this stops showing it, and nothing else.
    """


class Sink:
    """Text to a stream, at once and whole; raise DisplayGoneError when its reader is gone.

    A file that has no room for it is no reader that left: that is an OSError, as `is_full` tells.
    What the stream's encoding cannot say is written as an escape. It is file-like as far as rich needs.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding or "utf-8"
        self._fd = _fd(stream)

    def write(self, text: str) -> int:
        try:
            if self._fd is None:
                self._stream.write(text)
                self._stream.flush()
            else:
                _write_all(self._fd, text.encode(self.encoding, "backslashreplace"))
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            if is_full(error):
                raise
            if getattr(error, "errno", None) in (errno.EPIPE, errno.EIO) and self._fd is not None:
                null = os.open(os.devnull, os.O_WRONLY)  # or the flush at exit fails again
                os.dup2(null, self._fd)
                os.close(null)
            raise DisplayGoneError from error
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return self._fd is not None and os.isatty(self._fd)

    def fileno(self) -> int:
        if self._fd is None:
            raise OSError("the stream has no file descriptor")
        return self._fd

    def size(self) -> os.terminal_size:
        """Return the terminal's size; the usual one where it has none (some serial lines)."""
        try:
            size = os.get_terminal_size(self.fileno())
        except OSError:
            return os.terminal_size((80, 24))
        return os.terminal_size((size.columns or 80, size.lines or 24))


def is_full(error: Exception) -> bool:
    """Return True where what was to be written found no room."""
    return isinstance(error, OSError) and error.errno in FULL


def colours(stream: TextIO) -> bool:
    """Return True on a terminal, unless the environment says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _fd(stream: TextIO) -> int | None:
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares the terminal with us made it non-blocking
            select.select([], [fd], [])
