"""Mistakes in a file are collected, not raised one by one: a person fixes them all in one go."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.config.places import FILE, Lines, Place, line_of
from orchestrator.errors import UsageError
from orchestrator.text import count

_LONGEST = 60


class Wrong(Exception):  # noqa: N818 - a finding about one value, not a failure of ours
    """What is wrong with one value; worded to follow "key: "."""


@dataclass(frozen=True)
class Mistake:
    place: Place
    key: str
    what: str
    fix: str = ""  # what to write instead, as something to do

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

    def add(self, place: Place, key: str, what: str, fix: str = "") -> None:
        self._mistakes[Mistake(place, key, what, fix)] = None

    def add_to_file(self, what: str) -> None:
        self.add(FILE, "", what)

    def __len__(self) -> int:
        return len(self._mistakes)

    def error(self, source: str) -> UsageError:
        """All of them as one error, in the order of the file."""
        found = [(line_of(self.lines, mistake.place, mistake.key), mistake) for mistake in self._mistakes]
        found.sort(key=lambda item: item[0] or 0)
        mended = all(mistake.fix for _, mistake in found)
        only = found[0][1].fix if len(found) == 1 else ""
        return UsageError(
            f"{source} has {count(len(found), 'mistake')}",
            why="\n".join(
                mistake.text(line) + (f"; {mistake.fix}" if mistake.fix and not only else "")
                for line, mistake in found
            ),
            hint=only or ("" if mended else "`orchestrate init --example` shows every key"),
        )


def show(value: object) -> str:
    """A value as it may be printed: one line, no control characters, not too long."""
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
    """The valid word that was probably meant; case does not count."""
    by_lower = {choice.lower(): choice for choice in valid}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def listed(words: Sequence[str], last: str) -> str:
    """`a, b or c`"""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
