"""Mistakes in a file are collected, not raised one by one: a person fixes them all in one go."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.errors import UsageError

_LONGEST = 60


class Wrong(Exception):  # noqa: N818 - a finding about one value, not a failure of ours
    """What is wrong with one value; worded to follow "key: "."""


@dataclass(frozen=True)
class Mistake:
    where: str  # "[[host]] #3 (gpu-03)", "[job]", "line 3, column 5", or "" for the file as a whole
    key: str
    what: str

    def __str__(self) -> str:
        place = f"{self.where} {self.key}".strip()
        return f"{place}: {self.what}" if place else self.what


class Report:
    """Collects the mistakes of one file, in the order in which they are found."""

    def __init__(self) -> None:
        self._mistakes: dict[Mistake, None] = {}

    def add(self, where: str, key: str, what: str) -> None:
        self._mistakes[Mistake(where, key, what)] = None

    def __len__(self) -> int:
        return len(self._mistakes)

    def error(self, source: str) -> UsageError:
        count = len(self._mistakes)
        return UsageError(
            f"{source} has {count} {'mistake' if count == 1 else 'mistakes'}",
            why="\n".join(map(str, self._mistakes)),
            hint="hosts.example.toml shows every key",
        )


def show(value: object) -> str:
    """A value as it may be printed: one line, no control characters, not too long."""
    if isinstance(value, str):
        text = f'"{value}"' if value.isprintable() else json.dumps(value)
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}...{text[-1]}"


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word that was probably meant; case does not count."""
    by_lower = {choice.lower(): choice for choice in valid}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def among(valid: Iterable[str]) -> str:
    """`a, b or c`"""
    *first, last = valid
    return f"{', '.join(first)} or {last}" if first else last
