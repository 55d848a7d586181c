"""Mistakes in a file, collected so that users can fix all of them at once.

TOML's parser does not keep the lines of tables and keys, which messages need: `locate` finds them again.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from orchestrator.errors import UsageError
from orchestrator.text import count
from orchestrator.value import Value

_LONGEST = 60

# (table, its number from 1 if it is written [[table]] else 0, key; "" is the table's own line)
Lines: TypeAlias = Mapping[tuple[str, int, str], int]

_LONG_STRING = re.compile(r'"""(?:\\.|[^\\])*?"""' r"|'''.*?'''", re.DOTALL)
_DOTTED = r"[A-Za-z0-9_-]+(?:[ \t]*\.[ \t]*[A-Za-z0-9_-]+)*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_DOTTED})[ \t]*\]\]?[ \t\r]*(?:#.*)?")
_KEY = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")


class Place(Value):
    """A table of the file, under its name for users and as `locate` counts it."""

    title: str  # "[[host]] #3 (gpu-03)"
    table: str = ""
    number: int = 0


FILE = Place("")


def at(table: str) -> Place:
    """Return the place of a table that comes once."""
    return Place(f"[{table}]", table)


def locate(text: str) -> Lines:
    """Find the line of every table and key that is written in the usual way, one to a line."""
    lines: dict[tuple[str, int, str], int] = {}
    counts: Counter[str] = Counter()
    table, number, prefix = "", 0, ""
    text = _LONG_STRING.sub(lambda match: "\n" * match[0].count("\n"), text)
    for line, content in enumerate(text.split("\n"), start=1):
        if header := _HEADER.fullmatch(content):
            table, _, inner = re.sub(r"\s", "", header[2]).partition(".")
            if table in ("export", "role"):  # contain only tables
                table, inner = f"{table}.{inner}", ""
            if header[1] == "[[" and not inner:
                counts[table] += 1
            number, prefix = counts[table], f"{inner}." if inner else ""
            lines.setdefault((table, number, inner), line)
        elif key := _KEY.match(content):
            lines.setdefault((table, number, prefix + re.sub(r"\s", "", key[1])), line)
    return lines


def line_of(lines: Lines, place: Place, key: str) -> int | None:
    """Return the line of the key, otherwise that of the table or value that contains it."""
    if place == FILE:  # the key is a table's name, or precedes any table
        own = [line for (table, _, inner), line in lines.items() if {table, inner} == {key, ""}]
        return min(own, default=None)
    parts = key.split(".")
    inner = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    numbers = (lines.get((place.table, place.number, name)) for name in [*inner, ""])
    return next(filter(None, numbers), None)


_CURLY = re.compile("[\u2018-\u201f\u00ab\u00bb]")


def remark(text: str, error: str) -> str:
    """Return a remark, to follow TOML's `error`, on the likely cause in the text; "" for none."""
    line = re.search(r"at line (\d+)", error)
    if line and _CURLY.search(text.split("\n")[int(line[1]) - 1]):
        return '; the quotes must be straight ("), not curly'
    return "; text needs quotes, and true and false have none" if "Invalid value" in error else ""


class Wrong(Exception):  # noqa: N818 - a finding about one value, not a failure of ours
    """A mistake in one value; its text follows "key: "."""


class Report:
    """Collects the mistakes of one file."""

    def __init__(self) -> None:
        self.lines: Lines = {}
        self._mistakes: dict[tuple[Place, str, str], None] = {}

    def add(self, place: Place, key: str, what: str) -> None:
        self._mistakes[place, key, what] = None

    def __len__(self) -> int:
        return len(self._mistakes)

    def error(self, source: str) -> UsageError:
        """Return one error with all of them, in the order of the file.

        Each is a line: `line 12, [[host]] #3 (gpu-03), prot: is not a key; did you mean port?`
        """
        rows: list[tuple[int, str]] = []
        for place, key, what in self._mistakes:
            line = line_of(self.lines, place, key)
            shown = key if key.isprintable() and len(key) <= _LONGEST else show(key)
            where = ", ".join(filter(None, (f"line {line}" if line else "", place.title, shown)))
            rows.append((line or 0, f"{where}: {what}" if where else what))
        return UsageError(
            f"{source} has {count(len(rows), 'mistake')}",
            why="\n".join(row for _, row in sorted(rows, key=lambda row: row[0])),
            hint="`orchestrate init --example` shows every key",
        )


def show(value: object) -> str:
    """Return a value in printable form: one line, no control characters, limited length."""
    match value:
        case str():
            text = f'"{value}"' if value.isprintable() else json.dumps(value)
        case bool():
            text = str(value).lower()
        case list():
            text = "a list"
        case dict():
            text = "a table"
        case _:
            text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}...{text[-1]}"


def listed(items: Sequence[str], last: str) -> str:
    """Return `a, b or c`."""
    return f" {last} ".join(filter(None, (", ".join(items[:-1]), items[-1])))
