"""Lines that fit a terminal: broken between words, never inside one. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

_COMMAND = re.compile(r"`[^`]*`")
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
