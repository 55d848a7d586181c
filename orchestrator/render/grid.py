"""Columns below each other, cut into several blocks where the terminal is too narrow. Pure.

Rich would fold a table that is too wide inside its words, and neither a host's name nor a finding can be
read, searched or copied then.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from orchestrator.render.wrap import GAP, fitting, shortened
from orchestrator.text import plain

_LAST = 20  # cells that the last column of a table wants


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, least: Sequence[str] = ()
) -> list[str]:
    """Rows below their titles as lines of at most `width` cells, in which no word is cut.

    Columns without a word are left out, and then those that `least` names, the first one first, until the
    others fit; of the last column the words that fit are shown.
    """
    used = [place for place in range(len(head)) if any(row[place] for row in rows)]
    widths = {head[place]: max(cell_len(row[place]) for row in (head, *rows)) for place in used}
    last = head[used[-1]] if used else ""
    names = fitting({**widths, last: min(widths.get(last, 0), _LAST)}, least, width)
    used = [place for place in used if head[place] in names]
    room = None if width is None else width - sum(widths[name] + GAP for name in names[:-1])
    cells = [[row[place] for place in used] for row in (head, *rows)]
    if room is not None and names and names[-1] == last:
        cells = [[*row[:-1], shortened(row[-1], room)] for row in cells]
    return grid(cells)


def grid(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """The rows (of equal length) as lines. What does not fit into `width` cells follows in further blocks.

    Each block begins with the first column. A column wider than the terminal is not cut: what it says
    matters more than how it looks.
    """
    if not rows:
        return []
    columns = [[plain(row[place]).expandtabs() for row in rows] for place in range(len(rows[0]))]
    widths = [max(map(cell_len, column)) for column in columns]
    cells = [
        [cell + " " * (room + GAP - cell_len(cell)) for cell in column]
        for column, room in zip(columns, widths, strict=True)
    ]
    lines: list[str] = []
    for block in _blocks(widths, width):
        lines += [""] if lines else []
        lines += ["".join(cells[place][row] for place in block).rstrip() for row in range(len(rows))]
    return lines


def _blocks(widths: list[int], width: int | None) -> list[list[int]]:
    """The columns of each block."""
    blocks = [[0]]
    used = widths[0]
    for place in range(1, len(widths)):
        if width is not None and used + GAP + widths[place] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(place)
        used += GAP + widths[place]
    return blocks
