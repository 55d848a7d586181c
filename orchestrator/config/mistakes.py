"""Mistakes in a file are collected, not raised one by one: a person fixes them all in one go.

TOML's parser forgets the lines of tables and keys, and a person wants them: `locate` finds them again.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.errors import UsageError
from orchestrator.text import count

_LONGEST = 60

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
KUBERNETES = Place("[export.kubernetes]", "export.kubernetes")


def locate(text: str) -> Lines:
    """Find the line of every table and key that is written in the usual way, one to a line."""
    lines: dict[tuple[str, int, str], int] = {}
    counts: Counter[str] = Counter()
    table, number, prefix = "", 0, ""
    for line, content in enumerate(_without_long_strings(text).split("\n"), start=1):
        if header := _HEADER.fullmatch(content):
            table, _, inner = _plain(header[2]).partition(".")
            if table == "export":  # holds nothing but tables
                table, inner = f"{table}.{inner}", ""
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
    numbers = (
        lines.get((place.table, number, name)) for name in [*inner, ""] for number in (place.number, 0)
    )
    return next((line for line in numbers if line is not None), None)


def _without_long_strings(text: str) -> str:
    """Return lines without comments and without the inside of strings of several lines."""

    def shorten(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith(('"""', "'''")):
            return "\n" * text.count("\n")
        return "" if text.startswith("#") else text

    return _STRING_OR_COMMENT.sub(shorten, text)


def _plain(dotted: str) -> str:
    return re.sub(rf"[ \t]*({_PART})[ \t]*", lambda match: match[1].strip("\"'"), dotted)


class Wrong(Exception):  # noqa: N818 - a finding about one value, not a failure of ours
    """A mistake in one value; worded to follow "key: "."""


@dataclass(frozen=True)
class Mistake:
    place: Place
    key: str
    what: str

    def text(self, line: int | None) -> str:
        """`line 12, [[host]] #3 (gpu-03), prot: is not a key; did you mean port?`"""
        key = self.key if self.key.isprintable() and len(self.key) <= _LONGEST else show(self.key)
        parts = (f"line {line}" if line else "", self.place.title, key)
        where = ", ".join(part for part in parts if part)
        return f"{where}: {self.what}" if where else self.what


class Report:
    """Collects the mistakes of one file."""

    def __init__(self) -> None:
        self.lines: Lines = {}
        self._mistakes: dict[Mistake, None] = {}

    def add(self, place: Place, key: str, what: str) -> None:
        self._mistakes[Mistake(place, key, what)] = None

    def add_to_file(self, what: str) -> None:
        self.add(FILE, "", what)

    def __len__(self) -> int:
        return len(self._mistakes)

    def error(self, source: str) -> UsageError:
        """Make one error of all of them, in the order of the file."""
        mistakes = [(line_of(self.lines, mistake.place, mistake.key), mistake) for mistake in self._mistakes]
        mistakes.sort(key=lambda item: item[0] or 0)
        return UsageError(
            f"{source} has {count(len(mistakes), 'mistake')}",
            why="\n".join(mistake.text(line) for line, mistake in mistakes),
            hint="`orchestrate init --example` shows every key",
        )


def show(value: object) -> str:
    """Write a value as it may be printed: one line, no control characters, not too long."""
    if isinstance(value, str):
        text = f'"{value}"' if value.isprintable() else json.dumps(value)
    else:
        text = _show_other(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}...{text[-1]}"


def _show_other(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return "a list"
        case dict():
            return "a table"
        case int() if value.bit_length() > 64:  # Python may refuse to print it
            return "a very long number"
    return str(value)


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid word that was probably meant; case does not count."""
    by_lower = {choice.lower(): choice for choice in valid}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def listed(words: Sequence[str], last: str) -> str:
    """Write `a, b or c`."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
