"""Reading a task's last lines: the exception, its location, and whether a peer is to blame. Pure.

Based on the output of TensorFlow 2.21 when a task is killed, raises, freezes, or is configured differently.
One failing task makes its peers fail with messages about *it*: those are consequences.
"""

import re
from collections.abc import Sequence

from orchestrator.diagnosis import rules, tracebacks
from orchestrator.diagnosis.tracebacks import PrintedException
from orchestrator.text import count, cut

LONGEST = 240  # characters of an exception on one line

_DECORATION = (
    r"\{\{(?:function_)?node [^{}]*\}\}\s*|Collective ops is aborted by: "
    r"|(?:^|(?<=^Error: ))tensorflow\.python\.framework\.errors_impl\.|^__main__\."
    r"|(?<=\]) name:?\s*$"
)
# Messages of TensorFlow and its libraries that do not explain why a program ended.
_NOISE = (
    r"[IW]\d{4} \d\d:\d\d:[\d.]+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    r"|WARNING: All log messages before absl::InitializeLog\(\)|To enable the following instructions:"
    r"|I\d{4} \d\d:\d\d|WARNING:absl:"
)

_PEER = re.compile(r"/job:(chief|worker|ps|evaluator)(?:/replica:\d+)?/task:(\d+)")
_BLAMED = re.compile(
    r"remote target (/job:\S+)|error reported from (/job:\S+)|^\s*(/job:\S+)$", re.IGNORECASE
)

# Programs that end without a traceback and with one line: R, argparse, shells, interpreters.
_COMPLAINT = (
    r"(?P<r>Error(?: in .*?)? ?: ?.*|Error in .*)$|(?P<usage>\S+: error: .*)$|(?P<plain>error: .*)$"
    r"|(?P<shell>(?:\S*bash|\S*sh)?: (?:line )?\d+: .*)$|(?P<python>\S*python[\d.]*: .*)$"
    r"|(?P<fatal>(?:Fatal|fatal)(?: Python)? error: .*)$|(?P<flags>FATAL Flags parsing error: .*)$"
)
# Output of native code before it aborts: TensorFlow and absl, C++, the C library.
_NATIVE = (
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: F |F\d{4} \d\d:\d\d:[\d.]+ +\d+ )(?P<log>\S+[:\d]+\] .*)$"
    r"|(?P<c>(?:terminate called |libc\+\+abi: |double free|free\(\): |(?:m|c|re)alloc\w*\(\): |munmap_chunk"
    r"|corrupted |\*\*\* stack smashing|.*: Assertion `).*)$"
)
_WHAT = re.compile(r"\s*what\(\):\s*")  # of a C++ exception, below its type
# Lines of training; a traceback before them did not end the task.
_TRAINING = re.compile(r"Epoch\b|[Ss]tep\b|\d+/(?:\d+|Unknown)\b|.*\b(?:ETA|loss)\b")

_IN_R = re.compile(r"Error(?: in [^:]*)? ?: ((?:\w+\.)*\w+(?:Error|Exception)): ")
IN_A_RUN = re.compile(r"^.*/(?:runs|trees)/[^/]+/(?:work/)?")  # where a node stores what a task runs
_LIBRARY = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python3\.\d+)/")
LOOKED_AT = 5000  # lines of a log's end that are searched for a traceback
_NATIVE_WITHIN = 1000  # lines of a log's end: a dump of all threads follows
_LAST = 20  # lines that count as the last output if no exception is found
_WHERE = r'Detected at node|\s+File "|\s*\[\['  # lines with the location of a graph's error
_INNER = re.compile(r"\s+[A-Za-z_.]*(?:Error|Exception): ")
_OPEN = ("=", "(", "[", "{", ",")
_MESSAGE = 400  # lines of an exception's message that are examined
_SHOWN = 40  # lines of a traceback; its middle is the least informative


def exception(lines: Sequence[str]) -> str:
    """Return the exception that ended the task, on one line without TensorFlow's decoration; "" for none."""
    raised = ending(lines)
    message = final(lines)
    if raised is None:
        return next((_short(line) for line in message if "Collective ops is aborted by" in line), "")
    return one_line(raised.name, message)


def one_line(name: str, message: Sequence[str]) -> str:
    """Return an exception with this name and text on one line: its reason may be further down."""
    text = _short(tracebacks.bare(message[0])).rstrip()
    if text.endswith(_OPEN):  # it shows a multi-line value first
        rule = rules.classify(message, name)
        telling = next((line.strip() for line in message[1:] if rule and rule.pattern.search(line)), "")
        return _short(f"{text[: LONGEST // 2]} \u2026 {telling}") if telling else text
    if not text.endswith(":"):
        return text
    if text.endswith("in user code:"):  # Keras: the exception itself is at the end, indented
        inner = [line.strip() for line in message[1:] if _INNER.match(line)]
        return _short(inner[-1]) if inner else text.removesuffix(":")
    rest = message[1:]
    rule = rules.classify(rest, name)
    aborted = next((line for line in rest if "Collective ops is aborted by" in line), "")
    telling = next((line for line in rest if rule and rule.pattern.search(line)), "")
    others = (line for line in rest if line.strip() and not re.match(rf"{_WHERE}|{_NOISE}", line))
    reason = (aborted or telling or next(others, "")).strip()
    head = f"{_short(name)}:"
    own = text.removesuffix("Graph execution error:").rstrip() if text.startswith(head) else head
    return _short(f"{own} {reason}") if reason else text.removesuffix(":")


def complaint(lines: Sequence[str]) -> str:
    """Return the message of a program without a traceback (`Error in library(x) : ...`); "" for none."""
    output = [line for line in map(tracebacks.bare, last(lines)) if line.strip()]
    hits = [place for place, line in enumerate(output) if re.match(_COMPLAINT, line)]
    if not hits:
        return ""
    text = output[hits[-1]]
    if re.match(r"Error in .*(?::|\))\s*$", text) and hits[-1] + 1 < len(output):  # R breaks long lines
        text = f"{text.rstrip()} {output[hits[-1] + 1].strip()}"
    return _short(re.sub(r" : ", ": ", text, count=1))


def native(lines: Sequence[str]) -> str:
    """Return why native code aborted (`Check failed: ...`); "" if it gives no reason."""
    place = _native(lines)
    if place is None:
        return ""
    match = re.match(_NATIVE, lines[place])
    assert match is not None
    text = match["log"] or match["c"]
    what = next((line for line in lines[place + 1 : place + 3] if _WHAT.match(line)), "")
    return _short(f"{text}: {what.partition('what():')[2].strip()}" if what else text)


def _native(lines: Sequence[str]) -> int | None:
    first = max(0, len(lines) - _NATIVE_WITHIN)
    return next((at for at in range(len(lines) - 1, first - 1, -1) if re.match(_NATIVE, lines[at])), None)


def place(file: str, line: int) -> str:
    """Return `train.py, line 6`, or a library's file by its name there; "" if unknown."""
    return f"{_LIBRARY.sub('', IN_A_RUN.sub('', file))}, line {line}" if file and line else ""


def name(lines: Sequence[str]) -> str:
    """Return the name of the exception that ended the task, also one that R reports; "" for none."""
    raised = ending(lines)
    in_r = (match[1] for match in map(_IN_R.match, lines[-_LAST:]) if match)
    return raised.name if raised else next(in_r, "")


def blamed(message: Sequence[str]) -> str:
    """Return the task that the last output blames, as `worker/1`; "" if none is named."""
    for line in message:
        match = _BLAMED.search(line)
        named = _PEER.search(next(filter(None, match.groups()))) if match else None
        if named:
            return f"{named[1]}/{named[2]}"
    return ""


def last(lines: Sequence[str]) -> tuple[str, ...]:
    """Return a log's last lines, few enough to display, without noise if there is anything else."""
    telling = [line for line in lines if not re.match(_NOISE, line)]
    return tuple((telling or lines)[-_LAST:])


def excerpt(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines to display: the last traceback if that ended the task, otherwise the last lines."""
    raised = ending(lines)
    if raised is None or raised.begins == raised.at:
        given_up = _native(lines)
        return _bounded(lines[given_up:], ()) if given_up is not None else last(lines)
    shown = [line for line in lines[raised.begins :] if not re.match(_NOISE, line)]
    before = [line for line in lines[: raised.begins] if not re.match(_NOISE, line)]
    shown = [*before[-max(0, _LAST - len(shown)) :], *shown] if len(shown) < _LAST else shown
    return _bounded(shown, (tracebacks.bare(lines[raised.at]),))


def _bounded(shown: Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    if len(shown) <= _SHOWN:
        return tuple(shown)
    head, tail = shown[: _SHOWN // 3], shown[-(_SHOWN - _SHOWN // 3) :]
    displayed = {tracebacks.bare(line) for line in (*head, *tail)}
    named = tuple(_short(line) for line in needed if line not in displayed)
    return (*head, f"[{count(len(shown) - _SHOWN, 'line')} omitted]", *named, *tail)


def ending(lines: Sequence[str]) -> PrintedException | None:
    """Return the exception that ended the task: the last one, unless training continued after it."""
    raised = tracebacks.last(lines)
    if raised is None:
        return None
    after = [line for line in lines[raised.at + 1 :] if not re.match(_NOISE, line)]
    trained_on = len(after) >= _LAST and any(_TRAINING.match(line.lstrip()) for line in after)
    return None if trained_on else raised


def final(lines: Sequence[str]) -> Sequence[str]:
    """Return the output from the last exception's line on; without one, the last lines, or a native abort."""
    if raised := ending(lines):
        return from_root_cause(lines[raised.at :][:_MESSAGE])
    aborted = _native(lines)  # a stack of any length follows
    return lines[-_LAST:] if aborted is None else lines[max(0, min(aborted, len(lines) - _LAST)) :]


def from_root_cause(message: Sequence[str]) -> Sequence[str]:
    """Remove what torchrun lists before the root cause: processes that it ended after the first failure."""
    at = next((at for at, line in enumerate(message) if line.startswith("Root Cause (first observed")), 0)
    return (message[0], *message[at + 1 :]) if at else message


def _short(line: str) -> str:
    return cut(re.sub(_DECORATION, "", line.strip()), LONGEST)
