"""Events as lines of JSON, as they are stored and shown.

{"at": seconds since the epoch, "event": class name, ...fields}
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec.structs import asdict

from orchestrator.events import (
    AttemptFailed,
    AttemptPlanned,
    Event,
    LogGap,
    LogLine,
    RunPlanned,
    Stamped,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskReported,
    TaskStarted,
)
from orchestrator.model import TaskId
from orchestrator.names import AttemptName
from orchestrator.text import json_safe, utf8

_FAR = 1e15  # seconds
_OF_A_TASK = (TaskStarted, TaskReady, TaskProgressed, TaskReported, LogLine, LogGap, TaskExited)
_BY_NAME: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}


def encode(stamped: Stamped) -> bytes:
    """One JSON line, without its newline: UTF-8, and harmless for a terminal that shows it."""
    event = stamped.event
    fields = {"at": stamped.at, "event": type(event).__name__, **asdict(event)}
    if (attempt := fields.get("attempt", "")).isascii() and attempt.isdigit():
        fields["attempt"] = int(attempt)  # a name to us, since a validation has one too; elsewhere it counts
    try:
        line = msgspec.json.encode(fields)
    except UnicodeEncodeError:  # a name or an argument that is no UTF-8
        line = msgspec.json.encode(utf8(fields))
    return json_safe(line)


def decode(line: bytes) -> Stamped:
    """The inverse of `encode`; raise `msgspec.ValidationError` for anything else."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        at, name = fields.pop("at", None), fields.pop("event", None)
        kind = _BY_NAME.get(name) if isinstance(name, str) else None
        if not isinstance(at, int | float) or abs(at) > _FAR or kind is None:
            raise msgspec.ValidationError(f"not an event: {line[:80]!r}")
        if type(attempt := fields.get("attempt")) is int:
            fields["attempt"] = str(attempt)
        event = msgspec.convert(fields, kind)
        _check_names(event)
        return Stamped(float(at), event)
    except msgspec.ValidationError:
        raise
    except RecursionError:
        raise msgspec.ValidationError("nested too deep") from None
    except (ValueError, OverflowError) as error:  # cut, no UTF-8, a number beyond a float
        raise msgspec.ValidationError(str(error) or type(error).__name__) from error


def _check_names(event: Event) -> None:
    """Tasks are named as in TF_CONFIG, and an attempt can be a folder's name; raise ValueError."""
    tasks = [task for task, _ in event.tasks] if isinstance(event, RunPlanned | AttemptPlanned) else []
    if isinstance(event, _OF_A_TASK):
        tasks.append(event.task)
    for task in tasks:
        TaskId.parse(task)
    if isinstance(event, TaskStarted | TaskExited | AttemptFailed):
        AttemptName(event.attempt)
