"""A table that is drawn again in its place on a terminal; elsewhere it is printed when it has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from orchestrator.render.grid import shortened
from orchestrator.render.sink import Sink
from orchestrator.render.wrap import wrapped
from orchestrator.text import plain


class Redraw:
    """Shows one table after the other; raise DisplayGoneError when nobody can see it."""

    def __init__(self, stream: TextIO) -> None:
        self._sink = Sink(stream)
        self._drawn: list[str] = []

    def show(self, lines: Sequence[str]) -> None:
        lines = [plain(line) for line in lines]
        if lines == self._drawn:
            return
        if not self._sink.isatty():
            gap = "\n" if self._drawn else ""
            self._drawn = lines
            self._sink.write(gap + "".join(f"{line}\n" for line in lines))
            return
        columns, rows = self._sink.size()
        shown = wrapped(lines, columns - 1)
        if len(shown) >= rows:  # some of each line is better than all of some
            shown = lines[: rows - 1]
        shown = [shortened(line, columns - 1) for line in shown]
        up = f"\x1b[{len(self._drawn)}A" if self._drawn else ""
        self._drawn = shown
        self._sink.write(f"{up}\x1b[J" + "".join(f"{line}\n" for line in shown))
