"""Secrets out of text: what is printed, stored or sent as an event passes through here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

MASK = "***"
_SHORTEST_LINE = 8  # of a secret of several lines: "}" alone would blank half of any log


def redact(text: str, values: Iterable[str]) -> str:
    """Replace every secret value, also where it stands escaped or line by line, with `***`."""
    shapes = {shape for value in values for shape in _shapes(value) if shape}
    if not shapes:
        return text
    longest_first = sorted(shapes, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), MASK, text)


def _shapes(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    if "\n" in value.strip():
        yield from (line.strip() for line in value.split("\n") if len(line.strip()) >= _SHORTEST_LINE)
