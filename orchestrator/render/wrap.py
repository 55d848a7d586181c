"""Lines and columns that fit a terminal: broken between words, never inside one. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

_COMMAND = re.compile(r"`[^`]*`")
GAP = 2  # cells between two columns
_BLANK = "\0"  # of a command; no line has one


def wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    """Each line in as many as it needs, the further ones below the text of the first.

    A word that is wider than the terminal stays whole, and so does a command in backquotes: a path or a
    command that is cut cannot be copied.
    """
    if width is None:
        return list(lines)
    return [row for line in lines for row in _rows(line, width)]


def _rows(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    head, _, rest = line.partition(": ")
    indent = " " * (len(head) + 2) if rest and len(head) < 8 else "  "
    rows = textwrap.wrap(
        _COMMAND.sub(lambda match: match[0].replace(" ", _BLANK), line),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [row.replace(_BLANK, " ") for row in rows]


def fitting(widths: Mapping[str, int], least: Sequence[str], width: int | None) -> list[str]:
    """Return the names of the columns that fit side by side, without as many of `least` as have to go."""
    used = list(widths)
    for name in least:
        if width is None or sum(widths[one] + GAP for one in used) - GAP <= width:
            break
        if name in used:
            used.remove(name)
    return used


def shortened(text: str, width: int) -> str:
    """Return the words that fit; an ellipsis stands for the others."""
    if len(text) <= width:
        return text
    words = text[: max(0, width - 1)].rpartition(" ")[0]
    return f"{words}\u2026" if words else ""
