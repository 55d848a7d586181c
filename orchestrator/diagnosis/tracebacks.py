"""Tracebacks as Python 3.8 to 3.14 print them: chained, in groups, with notes, carets and colours. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_HEADER = re.compile(r"(?P<before>[ |+-]*)(?:Exception Group )?Traceback \(most recent call last\):$")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in .*)?$')
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_<]\w*>?)*)(?::(?: (?P<message>.*))?)?$")
# Of a traceback whose beginning is out of sight, and of R or a library that words it alike.
_NAMED = re.compile(
    r"\s{0,4}(?P<name>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))"
    r"(?::(?: (?P<message>.*))?)?$"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_GROUP = re.compile(r"[ ]*(?:\|[ ]?|\+-[+-]*)")

_GENERATED = "__autograph_generated_file"  # what TensorFlow makes of a function for a graph
LONGEST_LINE = 2000  # characters of a line that are looked at

DIRECT = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"


@dataclass(frozen=True)
class PrintedException:
    """One printed exception; lines are counted in the text that was read."""

    name: str
    begins: int  # the line of its header, of the chain's first one where it is chained
    at: int  # its own line: `ValueError: ...`
    file: str = ""
    line: int = 0
    # What it was raised from, or while it was handled, or holds as a group.
    cause: PrintedException | None = None
    last: int = -1  # the last line of a group's frame
    inner: str = ""  # the file of its last frame, a library's or not

    @property
    def ends(self) -> int:
        """The last line that is surely its own; its message may go on."""
        return max(self.at, self.last)


def last(lines: Sequence[str]) -> PrintedException | None:
    """The last exception in a text; None when there is none.

    One that Python only tells of (in a thread, in a destructor) counts when there is no other.
    """
    lines = shortened(lines)
    plain = [bare(line) for line in lines]
    chains: list[PrintedException] = []
    for each in _all(lines, plain):
        if chains and _is_chained(plain, chains[-1], each):
            before = chains.pop()
            each = replace(each, begins=before.begins, cause=before)  # noqa: PLW2901
        chains.append(each)
    deadly = [each for each in chains if not _is_aside(plain, each.begins)]
    raised = deadly[-1] if deadly else chains[-1] if chains else None
    named = [place for place, line in enumerate(plain) if _NAMED.match(line)]
    if named and (raised is None or _stands_alone(plain, chains, named[-1])):
        match = _NAMED.match(plain[named[-1]])
        assert match is not None
        return PrintedException(match["name"], named[-1], named[-1])
    return raised


def before(lines: Sequence[str], ending: PrintedException) -> tuple[PrintedException, bool] | None:
    """The exception that was printed right before that one, and whether it ended a thread.

    One of a thread may stand further up: the program went on without it.
    """
    lines = shortened(lines)
    plain = [bare(line) for line in lines[: ending.begins]]
    earlier = list(_all(lines[: ending.begins], plain))
    threads = [each for each in earlier if "Exception in thread" in _above(plain, each.begins)]
    if threads:
        return threads[-1], True
    near = earlier and not any(line.strip() for line in plain[earlier[-1].ends + 1 :])
    return (earlier[-1], False) if near and not _is_aside(plain, earlier[-1].begins) else None


def shortened(lines: Sequence[str]) -> Sequence[str]:
    """Cut lines that no person reads: the time of a pattern over a line may grow with its square."""
    return (
        tuple(line[:LONGEST_LINE] for line in lines)
        if max(map(len, lines), default=0) > LONGEST_LINE
        else lines
    )


def bare(line: str) -> str:
    """The line without colours, and without the frame that a group draws around it."""
    text = _COLOUR.sub("", line).rstrip()
    group = _GROUP.match(text)
    return text[group.end() :] if group else text


def message(lines: Sequence[str], raised: PrintedException) -> str:
    """The first line of what it says."""
    match = _NAME.match(bare(lines[raised.at])) or _NAMED.match(bare(lines[raised.at]))
    return (match["message"] or "") if match else ""


def _all(lines: Sequence[str], plain: Sequence[str]) -> Iterator[PrintedException]:
    place = 0
    while place < len(plain):
        header = _HEADER.match(_COLOUR.sub("", lines[place]).rstrip()) or _HEADER.match(plain[place])
        lone = not header and _is_lone_syntax_error(plain, place)
        each = None
        if header:
            group = "+" in header["before"]
            each = _read(plain, place, place + 1, 0 if group else len(header["before"]))
            if each is not None and group:
                each = _with_parts(lines, each)
        elif lone:
            each = _read(plain, place, place, 0)
        if each is not None:
            yield each
            place = each.ends
        place += 1


def _with_parts(lines: Sequence[str], group: PrintedException) -> PrintedException:
    """Add the first part of a group as its cause; the parts stand in a frame below it."""
    end = group.at
    while end + 1 < len(lines) and _COLOUR.sub("", lines[end + 1]).lstrip().startswith(("|", "+-")):
        end += 1
    inner = [bare(bare(line)) for line in lines[group.at + 1 : end + 1]]
    first = next(_all(inner, inner), None)
    place = next((at for at, line in enumerate(inner) if _NAME.match(line)), None)
    if first is None and place is not None:
        first = PrintedException(inner[place].partition(":")[0], place, place)
    if first is not None:
        shift = group.at + 1
        first = replace(first, begins=first.begins + shift, at=first.at + shift)
    return replace(group, cause=first, last=end)


def _read(lines: Sequence[str], begins: int, place: int, indent: int) -> PrintedException | None:
    """The exception whose frames begin at `place`; None when they never end in one."""
    file, number, inner = "", 0, ""
    for at in range(place, len(lines)):
        text = lines[at]
        if frame := _FRAME.match(text):
            inner = inner if _GENERATED in frame["file"] else frame["file"]
            if not file or not _is_library(frame["file"]):
                file, number = frame["file"], int(frame["line"])
        elif _HEADER.match(text):
            return None
        elif len(text) - len(text.lstrip()) <= indent and (match := _NAME.match(text.strip())):
            return PrintedException(match["name"], begins, at, file, number, inner=inner)
    return None


def _is_lone_syntax_error(lines: Sequence[str], place: int) -> bool:
    """Python prints no header for a script that it cannot compile."""
    if not lines[place].startswith("  File ") or not _FRAME.match(lines[place]) or ", in " in lines[place]:
        return False
    after = lines[place + 1 : place + 5]
    return any(re.match(r"(?:Syntax|Indentation|Tab)Error\b", line) for line in after)


def _is_chained(lines: Sequence[str], first: PrintedException, then: PrintedException) -> bool:
    between = (line.strip() for line in lines[max(first.at + 1, then.begins - 3) : then.begins])
    return any(line in (DIRECT, DURING) for line in between)


def _is_aside(lines: Sequence[str], begins: int) -> bool:
    return _above(lines, begins).startswith(("Exception ignored ", "Exception in thread ", "Error in atexit"))


def _above(lines: Sequence[str], begins: int) -> str:
    return next((line for line in reversed(lines[max(0, begins - 2) : begins]) if line.strip()), "")


def _stands_alone(lines: Sequence[str], chains: Sequence[PrintedException], place: int) -> bool:
    """Return True if that line is no part of a traceback or of its message, which may quote others."""
    last_line = max((each.ends for each in chains), default=-1)
    return place > last_line and not lines[place].startswith((" ", "\t"))


def _is_library(file: str) -> bool:
    made = "-packages/" in file or _GENERATED in file or file.endswith("/site_tensorflow.py")
    return made or "/lib/python3" in file or file.startswith("<frozen")
