"""Lines that differ only in how fast and how well a step went: what they have in common. Pure.

What Keras prints is known: `6/6 - 0s - loss: 0.5853 - accuracy: 0.8958 - 398ms/epoch`. Its durations,
rates and metrics may differ; anything else, the step and the epoch above all, makes another line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_EXPONENT = r"[eE][-+]?[0-9]+"
_NUMBER = rf"[-+]?[0-9]+(?:\.[0-9]+)?(?:{_EXPONENT})?"
_VARYING = re.compile(
    r"(?<=ETA: )(?P<eta>[0-9:]{1,16}s?)(?![\w:])"
    # 0s, 398ms/epoch; also behind the colours of Keras 3
    r"|(?:(?<![\w.\[;:/-])|(?<=\x1b\[[01]m))(?P<time>[0-9]+(?:\.[0-9]+)? ?(?:ns|us|\u00b5s|ms|s))"
    r"(?=/(?:step|epoch|sample|batch)\b|[^\w/]|$)"
    rf"|(?<![\w.])(?P<rate>{_NUMBER})(?= ?(?:steps?|examples?|samples?|images?|it|batch(?:es)?)/s)"
    r"|(?:(?<=\w: )|(?<=\bloss ))"
    rf"(?P<metric>[-+]?[0-9]+(?:\.[0-9]+(?:{_EXPONENT})?|{_EXPONENT}))(?![\w.])"
)
_ALARM = re.compile(r"(?i)error|exception|traceback|fatal|fail|warning|assert|abort")
_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0}


def shape(text: str) -> str:
    """The text without what may differ: lines of one shape are shown once. An error is its own shape."""
    if ":" not in text and "/" not in text and "loss " not in text:
        return text
    if _ALARM.search(text):
        return text
    return _VARYING.sub(_place, text)


def merge(texts: Sequence[str]) -> str:
    """One line for lines of one shape: the range where numbers differ, the longest of durations."""
    first = texts[0]
    if all(text == first for text in texts):
        return first
    columns = list(zip(*(list(_VARYING.finditer(text)) for text in texts), strict=True))
    pieces, end = [], 0
    for column in columns:
        pieces += [first[end : column[0].start()], _one(column)]
        end = column[0].end()
    return "".join([*pieces, first[end:]])


def _place(match: re.Match[str]) -> str:
    return f"\0{match.lastgroup}"


def _one(column: Sequence[re.Match[str]]) -> str:
    words = {match.group() for match in column}
    if len(words) == 1:
        return column[0].group()
    match column[0].lastgroup:
        case "time":
            return max(words, key=_seconds)
        case "eta":
            return max(words, key=_clock)
        case _:
            return f"{min(words, key=float)}..{max(words, key=float)}"


def _seconds(text: str) -> float:
    number = text.rstrip("nsum\u00b5")
    return float(number) * _UNITS[text.removeprefix(number)]


def _clock(text: str) -> tuple[int, list[int]]:
    """Sorts 0:59 before 1:02:05."""
    parts = [int(part or 0) for part in text.removesuffix("s").split(":")]
    return len(parts), parts
