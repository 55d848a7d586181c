"""argv to a command line: the only place where one is made, and right for any login shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

# Where sh, bash, csh and fish differ inside quotes: fish unescapes \\ and \' there, csh expands
# the history of ! even there. Outside quotes all of them read backslash-character as the character.
_APART = re.compile(r"([\\'!])")


def join(argv: Sequence[str]) -> str:
    """A command line that sh, bash, dash, csh and fish split into `argv` again.

    A leading `~/` of the program is left for the shell to expand. csh cannot take a newline.
    """
    program, *rest = argv
    return " ".join([_program(program), *map(quote, rest)])


def quote(word: str) -> str:
    if not _APART.search(word):
        return shlex.quote(word)
    pieces = (piece for piece in _APART.split(word) if piece)
    return "".join(f"\\{piece}" if _APART.match(piece) else f"'{piece}'" for piece in pieces)


def _program(word: str) -> str:
    if word.startswith("~/"):
        return "~/" + (quote(word[2:]) if word[2:] else "")
    return quote(word)
