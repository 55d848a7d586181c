"""Columns below each other, cut into several blocks where the terminal is too narrow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.text import cells, plain

_GAP = 2  # cells between two columns


def grid(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """The rows (of equal length) as lines. What does not fit into `width` cells follows in further blocks.

    Each block begins with the first column. A column wider than the terminal is not cut: what it says
    matters more than how it looks.
    """
    if not rows:
        return []
    columns = [[plain(row[place]) for row in rows] for place in range(len(rows[0]))]
    widths = [max(cells(cell) for cell in column) for column in columns]
    lines: list[str] = []
    for block in _blocks(widths, width):
        if lines:
            lines.append("")
        lines += [_line([columns[place][row] for place in block], [widths[place] for place in block])
                  for row in range(len(rows))]  # fmt: skip
    return lines


def _blocks(widths: list[int], width: int | None) -> list[list[int]]:
    """The columns of each block."""
    blocks = [[0]]
    used = widths[0]
    for place in range(1, len(widths)):
        if width is not None and used + _GAP + widths[place] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(place)
        used += _GAP + widths[place]
    return blocks


def _line(row: list[str], widths: list[int]) -> str:
    padded = (cell + " " * (width - cells(cell) + _GAP) for cell, width in zip(row, widths, strict=True))
    return "".join(padded).rstrip()
