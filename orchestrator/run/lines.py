r"""A task's bytes as display lines, incrementally: the same lines wherever the stream is split.

Lines end at `\n` only. Of a line redrawn with `\r` the last redraw counts. Complete lines are decoded, bad
UTF-8 is replaced, and no control character except colors reaches the terminal (see `text.harmless`). A line
longer than CAP bytes is cut for display and marked; the file keeps every byte.
"""

import codecs
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from orchestrator.events import LogLine
from orchestrator.text import harmless

CAP = 8192
_USUAL = bytes(range(0x20, 0x7F)) + b"\t\n"  # displayed unchanged


class Splitter:
    """The lines of one task's log, from byte `offset` on.

    `clock` is how far the node's clock is ahead of ours (s). Times come as records (offset, node's
    nanoseconds): bytes from that offset on were read at that time. A line has the time of the first byte of
    the displayed redraw, 0.0 if no record covers it.
    """

    def __init__(self, task: str, host: str, *, offset: int = 0, clock: float = 0.0) -> None:
        self._task = task
        self._host = host
        self._times = _Times(clock)
        self._offset = offset  # of the next byte
        self._start = offset  # where the current redraw begins
        self._head = bytearray()  # its first CAP bytes
        self._length = 0  # in bytes, including those not kept
        self._returned = False  # a \r came last: what follows is a new redraw, unless the line ends here

    def feed(self, data: bytes, times: Iterable[tuple[int, int]] = ()) -> list[LogLine]:
        """Return the lines that end in `data`; the rest waits for the next call."""
        self._times.add(times)
        *whole, rest = data.split(b"\n")
        lines = [self._line(part) for part in whole]
        if rest:
            self._keep(rest)
        self._times.forget(self._start)
        return lines

    def feed_blocks(self, data: bytes, times: Iterable[tuple[int, int]] = ()) -> list[LogLine]:
        r"""Like `feed`, but consecutive unchanged lines of one time come as one, with `\n` between them."""
        self._times.add(times)
        lines: list[LogLine] = []
        if self._length or self._returned:
            first = data.find(b"\n") + 1 or len(data)
            lines, data = self.feed(data[:first]), data[first:]
        end = data.rfind(b"\n") + 1
        whole, begins = data[:end], self._offset
        if not end or whole.translate(None, _USUAL) or max(map(len, whole.split(b"\n"))) > CAP:
            return lines + self.feed(data)
        times_change = (max(0, offset - begins - 1) for offset in self._times.between(begins, begins + end))
        cuts = sorted({0, end, *(whole.find(b"\n", place) + 1 for place in times_change)})
        for start, stop in pairwise(cuts):
            text = whole[start : stop - 1].decode("ascii")
            lines.append(LogLine(self._task, self._host, text, self._times.at(begins + start)))
        self._offset = self._start = begins + end
        return lines + self.feed(data[end:])

    def end(self) -> list[LogLine]:
        """Return the last line if the stream ended without a newline."""
        return [self._take()] if self._length else []

    def _line(self, part: bytes) -> LogLine:
        """Return the line that ends after `part`. Most lines arrive whole and take the fast path."""
        if self._length or self._returned or b"\r" in part or len(part) > CAP:
            self._keep(part)
            line = self._take()
        else:
            text = harmless(part.decode("utf-8", "replace"))
            line = LogLine(self._task, self._host, text, self._times.at(self._start))
            self._offset += len(part)
        self._offset += 1
        self._start = self._offset
        return line

    def _keep(self, part: bytes) -> None:
        """Append bytes to the current line; only its last redraw is kept."""
        shown = part.rstrip(b"\r")
        redraw = shown.rfind(b"\r") + 1
        if shown and (redraw or self._returned):
            self._start = self._offset + redraw
            self._head.clear()
            self._length = 0
        self._head += shown[redraw : redraw + CAP - len(self._head)]
        self._length += len(shown) - redraw
        self._returned = len(shown) < len(part) or (self._returned and not shown)
        self._offset += len(part)

    def _take(self) -> LogLine:
        """Return the current line, and reset the state."""
        # Not final: a character cut by the cap belongs to the remainder and is not an error.
        capped = self._length > len(self._head)
        decoded, used = codecs.utf_8_decode(bytes(self._head), "replace", not capped)
        text = harmless(decoded)
        if capped:
            text += f" \u2026 ({self._length - used:,} more bytes)"
        line = LogLine(self._task, self._host, text, self._times.at(self._start))
        self._head.clear()
        self._length = 0
        self._returned = False
        self._start = self._offset
        return line


class _Times:
    """When the bytes at an offset were read."""

    def __init__(self, clock: float) -> None:
        self._clock = clock
        self._offsets: list[int] = []
        self._seconds: list[float] = []

    def add(self, records: Iterable[tuple[int, int]]) -> None:
        for offset, nanoseconds in records:
            if not self._offsets or offset > self._offsets[-1]:
                self._offsets.append(offset)
                self._seconds.append(nanoseconds / 1e9 - self._clock)

    def at(self, offset: int) -> float:
        index = bisect_right(self._offsets, offset) - 1
        return self._seconds[index] if index >= 0 else 0.0

    def between(self, first: int, last: int) -> list[int]:
        """Return the offsets of records after `first` and before `last`."""
        return self._offsets[bisect_right(self._offsets, first) : bisect_right(self._offsets, last - 1)]

    def forget(self, offset: int) -> None:
        """Drop the records that no byte from `offset` on needs."""
        needed = bisect_right(self._offsets, offset) - 1
        if needed > 0:
            del self._offsets[:needed], self._seconds[:needed]
