"""What a command answered on many hosts, as lines: equal answers once, long ones as they come. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.groups import grouped
from orchestrator.render.fold import names
from orchestrator.text import plain, shell_signal, signal_name
from orchestrator.wire import Pipe

LIMIT = 16 << 20  # bytes of one answer that are kept
_LONGEST_LINE = 64 << 10


@dataclass
class Answer:
    """What one host has answered so far and is not shown yet."""

    host: str
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    dropped: int = 0  # bytes beyond the limit
    status: int | None = None  # None: it runs
    note: str = ""

    def add(self, stream: Pipe, data: bytes) -> None:
        kept = self.out if stream is Pipe.OUT else self.err
        room = max(0, LIMIT - len(kept))
        kept += data[:room]
        self.dropped += len(data) - min(room, len(data))

    def whole_lines(self) -> tuple[list[str], list[str]]:
        """Take the lines that are complete, of stdout and of stderr; a very long one in pieces."""
        return _take(self.out, self.host), _take(self.err, self.host)


def folded(answers: Iterable[Answer]) -> list[tuple[list[str], list[str]]]:
    """Per group of equal answers what is for stdout and what is for stderr."""
    groups = grouped(((bytes(one.out), bytes(one.err), one.status, one.note), one) for one in answers)
    return [_group(alike) for alike in groups.values()]


def _group(alike: list[Answer]) -> tuple[list[str], list[str]]:
    first = alike[0]
    who = names(answer.host for answer in alike)
    out, err = _text(first.out, who), _text(first.err, who)
    if first.dropped:
        err.append(f"{who}: {first.dropped:,} more bytes were dropped")
    last = [first.note, ending(first.status) if first.status else ""]
    if any(last):
        err.append(f"{who}: {'; '.join(filter(None, last))}")
    return out, err


def ending(status: int) -> str:
    """`ended with status 2`, `ended by SIGKILL`: what is above 128 may be a signal, as shells count."""
    number = shell_signal(status)
    return f"ended by {signal_name(number)}" if number else f"ended with status {status}"


def _text(data: bytearray, who: str) -> list[str]:
    """A line stands behind its hosts, several below them."""
    lines = [plain(line) for line in data.decode("utf-8", "replace").splitlines()]
    if len(lines) == 1:
        return [f"{who}: {lines[0]}"]
    return [f"{who}:", *(f"  {line}" for line in lines)] if lines else []


def _take(data: bytearray, host: str) -> list[str]:
    end = data.rfind(b"\n") + 1
    if not end and len(data) > _LONGEST_LINE:
        end = len(data)
    lines = bytes(data[:end]).decode("utf-8", "replace").splitlines()
    del data[:end]
    return [f"{host}: {plain(line)}" for line in lines]
