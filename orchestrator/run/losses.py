"""Whether a training that ended well by its exit status has lost its way: the last loss it showed. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

HINT = "lower the learning rate, clip gradients, check the data: a value became NaN or infinite"

_LOSS = re.compile(
    r"\bloss\b['\"]?\s*[:=]?\s*[\[(]?(?:tf\.Tensor\()?"
    r"(?P<value>[-+]?(?:nan|inf(?:inity)?|\d[\d.]*(?:e[-+]?\d+)?))\b",
    re.IGNORECASE,
)
_TERMINATED = "Invalid loss, terminating training"  # Keras' TerminateOnNaN; the program then exits with 0
_ODD = re.compile(r"[-+]?(?:nan|inf)", re.IGNORECASE)


def word(value: object) -> str:
    """`nan` or `inf` for a loss that a task reports as such (JSON has no number for it); else ""."""
    return value.lower() if isinstance(value, str) and _ODD.fullmatch(value[:20]) else ""


def diverged(lines: Sequence[str]) -> str:
    """What the end of a log says of a loss that is not finite; "" where the last loss is a number."""
    if any(_TERMINATED in line for line in lines):
        return "TerminateOnNaN ended its training: the loss became NaN or infinite"
    for line in reversed(lines):
        values = [match["value"] for match in _LOSS.finditer(line)]
        if values:
            return f"its last loss is {values[0].lower()}" if _ODD.match(values[0]) else ""
    return ""
