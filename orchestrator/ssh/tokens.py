"""Values of ssh_config with their %-tokens, variables and lists of files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace %-tokens as ssh_config(5) lists them; an unknown one stays as it is."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


@cache
def wildcards(pattern: str) -> re.Pattern[str]:
    """Only * and ? are special: fnmatch would read [host]:port as a set of characters."""
    return re.compile(
        "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern), re.DOTALL
    )


def unless_none(value: str) -> str | None:
    return None if value.lower() in {"", "none"} else value


def path(text: str, tokens: Mapping[str, str]) -> Path:
    expanded = expand(text, tokens)
    expanded = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), expanded)
    return Path(expanded).expanduser()


def files(value: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    """A list of files: `ssh -G` puts blanks between them, and does not quote one with a blank in it."""
    whole = path(value, tokens)
    if " " in value and whole.is_file():
        return (whole,)
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', value)]
    return tuple(path(word, tokens) for word in words if unless_none(word))
