"""Records of a task, as a node sends them: the lines of its report, and its final state. Pure."""

import json
from collections.abc import Iterator, Mapping
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
from orchestrator.value import Value

_WORD = 100  # characters of a description of its data activity
_NOTE = 2000  # characters of a task's message when it is ready

_MOST = 2**63
_SET = 10_000_000_000  # nanoseconds: a supervisor measures from a moment after its task's start
LONGEST = 256 << 10  # bytes of a record: the hook's, with six exceptions in which every character is escaped


class TaskPlace(Value):
    task: TaskId
    host: str
    attempt: str


def final(at: TaskPlace, state: wire.TaskRecord, clock_offset: float, now: float) -> TaskExited:
    """Return the end of a task from its final state.

    `clock_offset` is how far the node's clock is ahead of ours, in seconds; `now` is the time of an end that
    the node did not observe.
    """
    ended, started = state.ended_ns, state.started_ns
    seconds = state.seconds  # by a monotonic clock, if its supervisor observed the end
    if seconds is None:
        seconds = max(0.0, (ended - started) / 1e9) if started and ended else 0.0
    elif started and ended and abs(ended - (passed := started + int(seconds * 1e9))) > _SET:
        ended = passed  # the node's clock was set meanwhile, and the earliest failure is the root cause
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
        code=None if lost else state.exit_code,  # the node's combination of both is not a success
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
    """Return the end of a task as of `now`, if no node reports how it ended."""
    return TaskExited(
        task=str(at.task), host=at.host, attempt=at.attempt, lost=why, ended=now, stopped=stopped, loss=loss
    )


class ReportLines:
    """Splits a task's report into lines, and skips a line that is too long to be a record."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skips = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in `data`."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._keep(end)
            if not self._skips:
                yield bytes(self._rest)
            self._rest.clear()
            self._skips = False
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if self._skips or len(self._rest) + len(part) > LONGEST:
            self._skips = True
            self._rest.clear()
        else:
            self._rest += part


class Allowance(Struct):
    """The remaining number of reports of one kind from a task: a few hundred at once, then one a second."""

    remaining: float = 200.0
    since: float = 0.0

    def take(self, now: float) -> bool:
        """Return False for a report beyond the limit; `now` is monotonic."""
        self.remaining, self.since = min(200.0, self.remaining + now - self.since), now
        self.remaining -= (may := self.remaining >= 1)
        return may


def reported(task: TaskId, line: bytes) -> Event | None:
    """Return the event for one line of a task's report; None for an unknown kind.

    Raise ValueError for a line that is not a JSON object, or that does not fit into an event.
    """
    try:
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:  # Python's json writes NaN and Infinity
            record = msgspec.convert(json.loads(line), dict[str, Any])
        msgspec.json.encode(record)
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"not to be kept: {error}") from None
    match record.get("kind"):  # as worker_entry/report.py writes them
        case "ready":
            return TaskReady(str(task), str(record.get("note", ""))[:_NOTE])
        case "data":
            name, what = (str(record.get(key, ""))[:_WORD] for key in ("name", "step"))
            counts = (record.get(key) for key in ("done", "total"))
            done, total = (
                number_ if isinstance(number_, int) and 0 <= number_ < _MOST else 0 for number_ in counts
            )
            return Stepped(str(task), f"{name}: {what}", done, total)
        case "progress":
            step = record.get("step")
            return TaskProgressed(
                str(task),
                step if isinstance(step, int) and abs(step) < _MOST else 0,
                number(record.get("loss")),
                number(record.get("steps_per_second")),
                _not_finite(record.get("loss")),
                metrics(record),
            )
        case Last.RESULT | Last.PARAMS as kind:
            return TaskReported(str(task), Last(kind), {k: v for k, v in record.items() if k != "kind"})
        case Last.ERROR:
            return TaskReported(
                str(task),
                Last.ERROR,
                {key: value for key, value in msgspec.to_builtins(Raised.parse(record)).items() if value},
            )
    return None


def last_error(report: bytes) -> Raised | None:
    """Return the last error in the lines of a report; anything that is not a record is skipped."""
    for line in reversed(report.splitlines()):
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except (ValueError, RecursionError):
            continue
        if record.get("kind") == Last.ERROR:
            return Raised.parse(record)
    return None


def _not_finite(value: object) -> str:
    """Return `nan` or `inf` for a loss that is not finite: a number of Python's json, or this text."""
    word = str(value).lower().replace("infinity", "inf") if isinstance(value, str | float) else ""
    return word if word.lstrip("+-") in ("nan", "inf") else ""


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record that are metrics with their own names."""
    own = ("kind", "step", "loss", "steps_per_second")
    pairs = ((plain(name)[:_WORD], number(value)) for name, value in record.items() if name not in own)
    return {name: value for name, value in islice(pairs, MOST_NAMES) if name and value is not None}


def number(value: object) -> float | None:
    """Return an untrusted number if it is valid."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _MOST else None
