"""What the last lines of a task say: the exception, whether a peer is to blame, and what helps. Pure.

Written from what TensorFlow 2.21 prints when a task is killed, raises, freezes, or is configured unlike the
others. One failing task makes its peers fail with words about *it*: those are consequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator import rules
from orchestrator.rules import Rule

LONGEST = 240  # characters of an exception that are repeated in one line

# The last line of a traceback: "ValueError: ...", "numpy.linalg.LinAlgError: ...", "SystemExit: 3".
_EXCEPTION = re.compile(
    r"\s{0,4}((?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout)\b)(:.*|$)"
)
_NOISE = re.compile(
    r"\{\{(?:function_)?node [^}]*\}\}\s*|Collective ops is aborted by: "
    r"|^tensorflow\.python\.framework\.errors_impl\."
)

_PEER = re.compile(r"/job:(chief|worker|ps|evaluator)(?:/replica:\d+)?/task:(\d+)")
_ACCUSED = re.compile(
    r"remote target (/job:\S+)|error reported from (/job:\S+)|^\s*(/job:\S+)$", re.IGNORECASE
)

_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
LOOKED_AT = 400  # lines of a log's end in which a traceback is searched
_WORDS = 20  # lines that count as the last words
_SHOWN = 40  # lines of a traceback; its middle is the least telling


def exception(lines: Sequence[str]) -> str:
    """The exception that ended it, in one line without TensorFlow's decoration; "" when there is none."""
    words = _final(lines)
    match = _EXCEPTION.match(words[0]) if words else None
    if match is None:
        return next((_short(line) for line in words if "Collective ops is aborted by" in line), "")
    said = _short(words[0]).rstrip()
    if said.endswith((":", "Graph execution error:")):  # the reason follows further down
        reason = _reason(words[1:])
        return _short(f"{match[1]}: {reason}") if reason else said.removesuffix(":")
    return said


def _reason(words: Sequence[str]) -> str:
    known = rules.classify(words)
    aborted = next((line for line in words if "Collective ops is aborted by" in line), "")
    return aborted or next((line for line in words if known and known.pattern.search(line)), "").strip()


def blames_peer(lines: Sequence[str]) -> bool:
    """Whether its last words are about another task."""
    return rules.blames_peer(_final(lines))


def accused(lines: Sequence[str]) -> str:
    """The task its last words are about, as `worker/1`; "" when none is named."""
    for line in _final(lines):
        found = _ACCUSED.search(line)
        named = _PEER.search(next(filter(None, found.groups()))) if found else None
        if named:
            return f"{named[1]}/{named[2]}"
    return ""


def rule(lines: Sequence[str]) -> Rule | None:
    """What is known about what the last words say; None when we know nothing better than to read them."""
    return rules.classify(_final(lines))


def last(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines of a log, few enough to be shown."""
    return tuple(lines[-_WORDS:])


def excerpt(lines: Sequence[str]) -> tuple[str, ...]:
    """What to show of a log's end: its last traceback when that is what ended it, else its last lines.

    Of one that is very long the middle is left out.
    """
    begun = [place for place, line in enumerate(lines) if line.strip() == _TRACEBACK]
    ended = any(_EXCEPTION.match(line) for line in lines[-_WORDS:])
    if not begun or (not ended and len(lines) - begun[-1] > _WORDS):
        return last(lines)
    start = begun.pop()
    while begun and any(line.strip() in _CHAIN for line in lines[max(0, start - 3) : start]):
        start = begun.pop()
    shown = tuple(lines[min(start, max(0, len(lines) - _WORDS)) :])
    if len(shown) <= _SHOWN:
        return shown
    head, tail = shown[: _SHOWN // 3], shown[-(_SHOWN - _SHOWN // 3) :]
    return (*head, f"[{len(shown) - _SHOWN} lines are left out]", *tail)


def _final(lines: Sequence[str]) -> Sequence[str]:
    """Of the last words those from the last exception's line on; all when none is seen."""
    lines = lines[-_WORDS:]
    found = [place for place, line in enumerate(lines) if _EXCEPTION.match(line)]
    return lines[found[-1] :] if found else lines


def _short(line: str) -> str:
    text = _NOISE.sub("", line.strip())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\u2026"
