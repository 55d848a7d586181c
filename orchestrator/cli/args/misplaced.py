"""Options of the program that stand among ours: where they belong. Imports nothing heavy."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

_PROGRAMS = (".py", ".R", ".r", ".sh")


def behind(words: Sequence[str], command: Sequence[str]) -> str:
    """The command with `words`, which nobody takes, in their place; "" when that is not known."""
    if command:
        return shlex.join([*command, *words])
    at = next((at for at, word in enumerate(words) if word.endswith(_PROGRAMS)), None)
    if at is not None:
        return shlex.join([*words[at:], *words[:at]])
    from orchestrator.sync.builtin import builtin_parser

    known = re.findall(r"(?<=\[)--?[\w-]+", builtin_parser().format_usage())
    name, equals, value = words[0].partition("=")
    meant = difflib.get_close_matches(name, known, 1, cutoff=0.8)
    return shlex.join([meant[0] + equals + value, *words[1:]]) if meant else ""
