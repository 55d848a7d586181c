"""Records of a task, as a node sends them: the lines of its report, and its final state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator import wire
from orchestrator.diagnosis.statement import Raised
from orchestrator.events import (
    Event,
    Last,
    Loss,
    Stepped,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskReported,
)
from orchestrator.model import TaskId
from orchestrator.run.points import MOST_NAMES
from orchestrator.text import plain

_WORD = 100  # characters of what it does about its data
_NOTE = 2000  # characters of what a task says when it is ready

_MOST = 2**63
LONGEST = 256 << 10  # bytes of a record: the hook's, with six exceptions of which each letter is escaped


class TaskPlace(Struct, frozen=True):
    """A task, where it runs, and in which attempt."""

    task: TaskId
    host: str
    attempt: str


def final(at: TaskPlace, state: wire.TaskRecord, clock_offset: float, now: float) -> TaskExited:
    """Read the end of a task from its final state.

    `clock_offset` is how far the node's clock is ahead of ours, in seconds; `now` the time of an end that
    the node did not see.
    """
    ended, started = state.ended_ns, state.started_ns
    seconds = state.seconds  # by a clock that does not jump, where its supervisor saw the end
    if seconds is None:
        seconds = max(0.0, (ended - started) / 1e9) if started and ended else 0.0
    lost, loss = "", Loss.NONE
    if state.state is wire.TaskPhase.LOST:
        lost = state.message or "its supervisor was killed"
    if state.state is wire.TaskPhase.UNSTARTED:
        lost, loss = state.message or "it could not be started", Loss.UNSTARTED
    if state.restarted:
        loss = Loss.RESTARTED
    return TaskExited(
        task=str(at.task),
        host=at.host,
        attempt=at.attempt,
        code=None if lost else state.exit_code,  # what a node makes of both is not a success
        signal=state.exit_signal,
        lost=lost,
        seconds=seconds,
        ended=(ended / 1e9 - clock_offset) if ended else now,
        stopped=state.want is not wire.Want.RUN,
        note="" if lost else state.message,
        loss=loss,
        oom_kills=state.oom_kills,
    )


def vanished(
    at: TaskPlace, why: str, now: float, *, stopped: bool = False, loss: Loss = Loss.NONE
) -> TaskExited:
    """The end of the task of a place as of `now`, when no node tells how it ended."""
    return TaskExited(
        task=str(at.task),
        host=at.host,
        attempt=at.attempt,
        lost=why,
        ended=now,
        stopped=stopped,
        loss=loss,
    )


class ReportLines:
    """Cuts what comes of a task's report into lines, and skips a line that is too long to be a record."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skips = False
        self._length = 0  # of the line so far
        self.end = 0  # byte behind the last line

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in `data`."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._keep(end)
            self.end, self._length = self.end + self._length + 1, 0
            if not self._skips:
                yield bytes(self._rest)
            self._rest.clear()
            self._skips = False
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        self._length += len(part)
        if self._skips or len(self._rest) + len(part) > LONGEST:
            self._skips = True
            self._rest.clear()
        else:
            self._rest += part


class Allowance(Struct):
    """The reports of one kind that a task has left: a few hundred at once, then one a second."""

    left: float = 200.0
    since: float = 0.0

    def take(self, now: float) -> bool:
        """Return False for a report that is one too many; `now` is monotonic."""
        self.left, self.since = min(200.0, self.left + now - self.since), now
        self.left -= (may := self.left >= 1)
        return may


class _Record(StrEnum):
    """The kinds of a report's lines beside its last words; as worker_entry/report.py writes them."""

    READY = "ready"
    DATA = "data"
    PROGRESS = "progress"


def reported(task: TaskId, line: bytes) -> Event | None:
    """The event that one line of a task's report stands for; None for a kind we do not know.

    Raise ValueError for a line that is not a JSON object, or that does not fit into an event.
    """
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
        msgspec.json.encode(record)
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"not to be kept: {error}") from None
    match record.get("kind"):
        case _Record.READY:
            return TaskReady(str(task), str(record.get("note", ""))[:_NOTE])
        case _Record.DATA:
            name, what = (str(record.get(key, ""))[:_WORD] for key in ("name", "step"))
            counts = (record.get(key) for key in ("done", "total"))
            done, total = (one if isinstance(one, int) and 0 <= one < _MOST else 0 for one in counts)
            return Stepped(str(task), f"{name}: {what}", done, total)
        case _Record.PROGRESS:
            step = record.get("step")
            return TaskProgressed(
                str(task),
                step if isinstance(step, int) and abs(step) < _MOST else 0,
                number(record.get("loss")),
                number(record.get("steps_per_second")),
                _not_finite(record.get("loss")),
                metrics(record),
            )
        case Last.RESULT:
            return TaskReported(str(task), Last.RESULT, {k: v for k, v in record.items() if k != "kind"})
        case Last.ERROR:
            return TaskReported(
                str(task),
                Last.ERROR,
                {key: value for key, value in msgspec.to_builtins(Raised.parse(record)).items() if value},
            )
    return None


def last_error(report: bytes) -> Raised | None:
    """The last error in the lines of a report; whatever is not a record is skipped."""
    for line in reversed(report.splitlines()):
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except (ValueError, RecursionError):
            continue
        if record.get("kind") == Last.ERROR:
            return Raised.parse(record)
    return None


def _not_finite(value: object) -> str:
    """Return `nan` or `inf` for a loss that a task reports in this word: JSON has no number for it."""
    word = value.lower() if isinstance(value, str) else ""
    return word if word.lstrip("+-") in ("nan", "inf") else ""


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record that have a name of their own."""
    own = ("kind", "step", "loss", "steps_per_second")
    told = ((plain(name)[:_WORD], number(value)) for name, value in record.items() if name not in own)
    return {name: value for name, value in islice(told, MOST_NAMES) if name and value is not None}


def number(value: object) -> float | None:
    """Return a stranger's number, if it is one that can be passed on."""
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
        else None
    )
