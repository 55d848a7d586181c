"""Where in the file a table or a key stands: TOML's parser forgets the lines, and a person wants them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

# (table, its number from 1 if it is written [[table]] else 0, key; "" is the table's own line)
Lines: TypeAlias = Mapping[tuple[str, int, str], int]

_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""' r"|'''.*?'''" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'" r"|\#[^\n]*",
    re.DOTALL,
)
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_DOTTED})[ \t]*\]\]?[ \t\r]*")
_KEY = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")


@dataclass(frozen=True)
class Place:
    """A table of the file, as a person calls it and as `locate` counts it."""

    title: str  # "[[host]] #3 (gpu-03)"
    table: str = ""
    number: int = 0


FILE = Place("")
DEFAULTS = Place("[defaults]", "defaults")
JOB = Place("[job]", "job")
ENV = Place("[env]", "env")
DATA = Place("[data]", "data")


def locate(text: str) -> Lines:
    """Find the line of every table and key that is written in the usual way, one to a line."""
    lines: dict[tuple[str, int, str], int] = {}
    counts: Counter[str] = Counter()
    table, number, prefix = "", 0, ""
    for line, content in enumerate(_without_long_strings(text).split("\n"), start=1):
        if header := _HEADER.fullmatch(content):
            table, _, inner = _plain(header[2]).partition(".")
            if header[1] == "[[" and not inner:
                counts[table] += 1
            number, prefix = counts[table], f"{inner}." if inner else ""
            lines.setdefault((table, number, inner), line)
        elif key := _KEY.match(content):
            lines.setdefault((table, number, prefix + _plain(key[1])), line)
    return lines


def line_of(lines: Lines, place: Place, key: str) -> int | None:
    """The line to look at: the key's own, else that of the table or value it is in."""
    if place == FILE:
        own = [
            line
            for (table, _, inner), line in lines.items()
            if key and inner in {"", key} and table in {"", key}
        ]
        return min(own, default=None)
    parts = key.split(".")
    inner = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    # [host] in place of [[host]] is a mistake, and the tables in it are read all the same.
    found = (lines.get((place.table, number, name)) for name in [*inner, ""] for number in (place.number, 0))
    return next((line for line in found if line is not None), None)


def _without_long_strings(text: str) -> str:
    """The same lines without comments and without what strings of several lines hold."""

    def shorten(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith(('"""', "'''")):
            return "\n" * found.count("\n")
        return "" if found.startswith("#") else found

    return _STRING_OR_COMMENT.sub(shorten, text)


def _plain(dotted: str) -> str:
    return re.sub(rf"[ \t]*({_PART})[ \t]*", lambda match: match[1].strip("\"'"), dotted)
