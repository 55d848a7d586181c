"""Tables and lines that fit a terminal, broken between words. Pure."""

import re
import textwrap
from collections.abc import Collection, Sequence

from orchestrator.text import plain

_GAP = 2  # cells between two columns
_LAST = 20  # cells that the last column of a table should get
_COMMAND = re.compile(r"`[^`]*`")
QUOTE = "    | "  # before each last line of a task
_BLANK = "\0"  # of a command; no line starts with it


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    least: Sequence[str] = (),
    right: Collection[str] = (),
) -> list[str]:
    """Return rows below their titles as lines in which no word is cut; the columns `right` are right-aligned.

    Empty columns are left out, and then those in `least`, in that order, until the others fit into `width`
    cells; the last column shows the words that fit. Columns that still do not fit follow in further blocks,
    each of which repeats the first column.
    """
    columns = {
        plain(name): [plain(row[place]).expandtabs() for row in rows]
        for place, name in enumerate(head)
        if any(row[place] for row in rows)
    }
    widths = {name: max(map(len, (name, *texts))) for name, texts in columns.items()}
    for name in least:
        if width is not None and name in columns and _needed(widths) > width:
            del widths[name], columns[name]
    last = next(reversed(columns), "")
    if width is not None and last == head[-1] and _needed(widths) <= width:
        room = width - sum(cells + _GAP for name, cells in widths.items() if name != last)
        columns[last] = [shortened(text, room) for text in columns[last]]
        widths[last] = max(map(len, (last, *columns[last])))
    lines: list[str] = []
    for block in _blocks(widths, width):
        lines += [""] if lines else []
        padded = [
            [f"{text:{'>' if name in right else '<'}{widths[name]}}" for text in (name, *columns[name])]
            for name in block
        ]
        lines += ((" " * _GAP).join(row).rstrip() for row in zip(*padded, strict=True))
    return lines


def _needed(widths: dict[str, int]) -> int:
    """Return the cells of a line; the last column needs few of its own."""
    *others, last = widths.values()
    return sum(cells + _GAP for cells in others) + min(last, _LAST)


def _blocks(widths: dict[str, int], width: int | None) -> list[list[str]]:
    """Distribute the columns; one wider than the terminal is not cut."""
    blocks: list[list[str]] = []
    used = 0
    for name, cells in widths.items():
        if not blocks or (width is not None and used + _GAP + cells > width and len(blocks[-1]) > 1):
            blocks.append([next(iter(widths))])
            used = widths[blocks[-1][0]]
        if name not in blocks[-1]:
            blocks[-1].append(name)
            used += _GAP + cells
    return blocks


def wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    """Break each line into as many as needed, continued below the text of the first.

    A word wider than the terminal stays whole, and so does a command in backquotes: a path or a command that
    is cut cannot be copied.
    """
    if width is None:
        return list(lines)
    return [row for line in lines for row in _rows(line, width)]


def _rows(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    if line.startswith(QUOTE) and width > 2 * len(QUOTE):
        rows = textwrap.wrap(line.removeprefix(QUOTE), width - len(QUOTE), break_on_hyphens=False)
        return [QUOTE + row for row in rows]
    head, _, rest = line.partition(": ")
    rows = textwrap.wrap(
        _COMMAND.sub(lambda match: match[0].replace(" ", _BLANK), line),
        width,
        subsequent_indent=" " * (len(head) + 2) if rest and len(head) < 8 else "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row.replace(_BLANK, " ") for row in rows]


def shortened(text: str, width: int) -> str:
    """Return the words that fit; an ellipsis replaces the others."""
    if len(text) <= width:
        return text
    start = text[: max(0, width - 1)].rpartition(" ")[0]
    return f"{start}\u2026" if start else ""
