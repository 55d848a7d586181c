"""A terminal with lines that scroll by and a region that stays at its bottom."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from orchestrator.render.sink import Sink
from orchestrator.text import cells

_SEQUENCE = re.compile(r"\x1b\[[0-9;:]*m")


class Screen:
    """Every frame is one write: take the region away, write the new lines, draw the region again.

    The cursor rests at the region's end and is never hidden: a killed process leaves nothing to repair.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rows: tuple[str, ...] = ()  # as they stand on the screen

    @property
    def width(self) -> int:
        return self._size().columns

    @property
    def height(self) -> int:
        return self._size().lines

    def draw(self, lines: Sequence[str], rows: Sequence[str]) -> None:
        """Nothing is written when nothing has changed. Rows must be narrower than the screen."""
        if not lines and tuple(rows) == self._rows:
            return
        erase = self._erase()
        self._rows = tuple(rows)
        self._sink.write(erase + "".join(f"{line}\n" for line in lines) + "\n".join(rows))

    def _erase(self) -> str:
        """Back to where the region begins. After a resize its rows may each take several of the screen."""
        if not self._rows:
            return ""
        width = max(1, self.width)
        taken = sum(max(1, -(-cells(_SEQUENCE.sub("", row)) // width)) for row in self._rows)
        return "\r" + (f"\x1b[{taken - 1}A" if taken > 1 else "") + "\x1b[J"

    def _size(self) -> os.terminal_size:
        """Of the terminal; the usual size where it has none (some serial lines)."""
        try:
            size = os.get_terminal_size(self._sink.fileno())
        except OSError:
            return os.terminal_size((80, 24))
        return os.terminal_size((size.columns or 80, size.lines or 24))
