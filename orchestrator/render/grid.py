"""Columns below each other, cut into several blocks where the terminal is too narrow. Pure.

Rich lays out a block. Which columns make one is ours: rich would fold a table that is too wide inside its
words, and neither a host's name nor a finding can be read, searched or copied then.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.text import plain

_GAP = 2  # cells between two columns


def grid(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """The rows (of equal length) as lines. What does not fit into `width` cells follows in further blocks.

    Each block begins with the first column. A column wider than the terminal is not cut: what it says
    matters more than how it looks.
    """
    if not rows:
        return []
    columns = [[plain(row[place]).expandtabs() for row in rows] for place in range(len(rows[0]))]
    widths = [max(cell_len(cell) for cell in column) for column in columns]
    lines: list[str] = []
    for block in _blocks(widths, width):
        if lines:
            lines.append("")
        lines += _lines([columns[place] for place in block], sum(widths) + _GAP * len(widths))
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


def _lines(columns: list[list[str]], width: int) -> list[str]:
    """One block, laid out by rich as bare text with room for everything."""
    table = Table.grid(padding=(0, _GAP, 0, 0))
    for _ in columns:
        table.add_column(no_wrap=True, overflow="ignore")
    for row in zip(*columns, strict=True):
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]
