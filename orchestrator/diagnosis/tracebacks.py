"""Tracebacks as Python 3.8 to 3.14 print them: chained, with notes, carets and colors. Pure.

A task's own report has more, such as groups of exceptions; this is for tasks that could not report.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from orchestrator.value import Value

# PyTorch calls the one that a DataLoader process sent "Original".
_HEADER = re.compile(r" *(?:Original )?Traceback \(most recent call last\):$")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in .*)?$')
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_<]\w*>?)*)(?::(?: (?P<message>.*))?)?$")
# A traceback whose beginning is cut off, and similar output of R or a library.
_NAMED = re.compile(
    r"\s{0,4}(?P<name>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))"
    r"(?::(?: (?P<message>.*))?)?$"
)
_DECORATION = re.compile(r"\x1b\[[0-9;:]*m|^\[rank\d+\]: ?")  # PyTorch numbers the lines of a traceback

_HOOK = ("/site_frameworks.py", "/site_meeting.py")
_GENERATED = "__autograph_generated_file"  # what TensorFlow turns a function into for a graph
LONGEST_LINE = 2000  # characters of a line that are examined

_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_ASIDE = ("Exception ignored ", "Exception in thread ", "Error in atexit")  # it does not end a program


_OF_PART = re.compile(r"(?:Exception in )?(thread .+|Process \S+):$")


class PrintedException(Value):
    """One printed exception; lines are counted in the text that was read."""

    name: str
    begins: int  # the line of its header; in a chain, of the first one
    at: int  # its own line: `ValueError: ...`
    file: str = ""
    line: int = 0
    inner: str = ""  # the file of its last frame, a library's or not
    source: str = ""  # the line of the program below the frame of `file`


def last(lines: Sequence[str]) -> PrintedException | None:
    """Return the last exception in a text; None if there is none.

    One that Python only reports (in a thread, in a destructor) counts if there is no other.
    """
    plain = [bare(line) for line in shortened(lines)]
    chains: list[PrintedException] = []
    printed = (_read(plain, at) for at, line in enumerate(plain) if _HEADER.match(line))
    for each in filter(None, printed):
        above = (line.strip() for line in plain[max(0, each.begins - 3) : each.begins])
        if chains and any(line in _CHAINED for line in above):
            each = replace(each, begins=chains.pop().begins)  # noqa: PLW2901
        chains.append(each)
    deadly = [each for each in chains if not _is_aside(plain, each.begins)]
    raised = deadly[-1] if deadly else chains[-1] if chains else None
    named = [place for place, line in enumerate(plain) if _NAMED.match(line)]
    # A separate one is not part of a traceback, nor of its message, which may quote others.
    if named and (
        raised is None
        or (named[-1] > max(each.at for each in chains) and not plain[named[-1]].startswith((" ", "\t")))
    ):
        match = _NAMED.match(plain[named[-1]])
        assert match is not None
        return PrintedException(match["name"], named[-1], named[-1])
    return raised


def of_part(lines: Sequence[str]) -> tuple[str, PrintedException] | None:
    """Return the last exception that ended a thread or a child process, and which: `thread feed`."""
    plain = [bare(line) for line in lines]
    for at in range(len(plain) - 1, -1, -1):
        match = _OF_PART.match(plain[at])
        if match and _HEADER.match("".join(plain[at + 1 : at + 2])) and (raised := _read(plain, at + 1)):
            return match[1][0].lower() + match[1][1:], raised
    return None


def shortened(lines: Sequence[str]) -> Sequence[str]:
    """Cut the middle out of very long lines: a pattern's time may grow with their square.

    The end stays: JAX puts one "Error dispatching computation: " per step before the error.
    """
    if max(map(len, lines), default=0) <= LONGEST_LINE:
        return lines
    half = LONGEST_LINE // 2
    return tuple(line if len(line) <= LONGEST_LINE else line[:half] + line[-half:] for line in lines)


def bare(line: str) -> str:
    """Return the line without colors and PyTorch's rank."""
    return _DECORATION.sub("", line).rstrip()


def _read(lines: Sequence[str], begins: int) -> PrintedException | None:
    """Return the exception whose header is at `begins`; None if its frames never end in one."""
    file, number, inner, source = "", 0, "", ""
    indent = len(lines[begins]) - len(lines[begins].lstrip())
    for at in range(begins + 1, len(lines)):
        text = lines[at]
        if frame := _FRAME.match(text):
            inner = inner if _GENERATED in frame["file"] else frame["file"]
            if not file or not is_library(frame["file"]):
                file, number = frame["file"], int(frame["line"])
                source = "".join(lines[at + 1 : at + 2]).strip()
        elif _HEADER.match(text):
            return None
        elif len(text) - len(text.lstrip()) <= indent and (match := _NAME.match(text.strip())):
            return PrintedException(match["name"], begins, at, file, number, inner, source)
    return None


def _is_aside(lines: Sequence[str], begins: int) -> bool:
    above = (line for line in reversed(lines[max(0, begins - 2) : begins]) if line.strip())
    return next(above, "").startswith(_ASIDE)


def is_library(file: str) -> bool:
    """Return True for a file of a package, of Python, or generated by TensorFlow or orchestrate."""
    made = "-packages/" in file or _GENERATED in file or file.endswith(_HOOK)
    return made or "/lib/python3" in file or file.startswith("<frozen")
