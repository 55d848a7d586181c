"""Where a renderer writes: a stream that may be a closed pipe, a closed terminal or non-blocking."""

import errno
import os
import select
from typing import TextIO

from orchestrator.node.base.lenient import FULL


class DisplayGoneError(BrokenPipeError):
    """Our output has no reader any more (`| head` ended, the terminal was closed).

    The run goes on: whoever catches this only stops showing it.
    """


class Sink:
    """Writes text to a stream, at once and completely; raises DisplayGoneError if its reader is gone.

    Writing "" only checks that. A full disk is not a missing reader but an OSError, see `is_full`.
    Characters that the stream's encoding lacks are written as escapes. It is file-like as far as rich needs.
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
                null = os.open(os.devnull, os.O_WRONLY)  # otherwise the flush at exit fails again
                os.dup2(null, self._fd)
                os.close(null)
            raise DisplayGoneError from error
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def isatty(self) -> bool:
        return self._fd is not None and os.isatty(self._fd)

    def fileno(self) -> int:
        if self._fd is None:
            raise OSError("the stream has no file descriptor")
        return self._fd

    def size(self) -> os.terminal_size:
        """Return the terminal's size; a default if it has none (some serial lines)."""
        try:
            size = os.get_terminal_size(self.fileno())
        except OSError:
            return os.terminal_size((80, 24))
        return os.terminal_size((size.columns or 80, size.lines or 24))


def is_full(error: Exception) -> bool:
    """Return True for an error about missing disk space."""
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
    if not data:
        watch = select.poll()
        watch.register(fd, 0)
        if watch.poll(0):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another process that shares the terminal made it non-blocking
            select.select([], [fd], [])
