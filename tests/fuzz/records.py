"""Mutated lines of our own and of tasks' files: events, plans, reports."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from orchestrator import events
from orchestrator.events import Stamped
from orchestrator.model import Completion, TaskId
from orchestrator.run.records import reported
from orchestrator.store.folder import decode_plan
from tests.fuzz.mutate import damaged, mutated
from tests.unit.plans import host, make

_TASK = TaskId.parse("worker/0")
_EVENTS = (
    events.TaskExited("worker/0", "a", "1", 0, None, "", 1.0, 2.0, stopped=False),
    events.TaskProgressed("worker/0", 3, 0.5, 2.0),
    events.HostFailed("a", events.Phase.CONNECT, "auth", "what", "why", "try"),
    events.LogGap("worker/0", events.GapPlace.NODE, 7, "why"),
    events.StopRequested(events.StopBy.USER, "", 1.0),
)
_REPORTS = (
    {"kind": "progress", "step": 1, "loss": 0.5, "steps_per_second": 1.0},
    {"kind": "ready", "note": "x"},
    {"kind": "result", "accuracy": 1},
)
_PLAN = json.loads(msgspec.json.encode(make(host("a"), host("b", "chief"), command=("train.py",))))


def _kept(line: bytes) -> None:
    event = reported(_TASK, line)
    if event is not None:
        events.decode(events.encode(Stamped(1.0, event)))


READERS: Mapping[str, tuple[Callable[[bytes], object], tuple[Any, ...]]] = {
    "event": (events.decode, tuple(json.loads(events.encode(Stamped(1.0, one))) for one in _EVENTS)),
    "plan": (decode_plan, (_PLAN,)),
    "report": (_kept, _REPORTS),
}
assert Completion.ALL in _PLAN["completion"]


def play(dice: random.Random, kind: str) -> str:
    """One mutated line; return what came of it. An error that its readers do not expect is raised."""
    reader, known = READERS[kind]
    line = dice.choice(known)
    changed = mutated(dice, line) if dice.random() < 0.7 else line
    data = json.dumps(changed).encode()
    if dice.random() < 0.4:
        data = damaged(dice, data)
    try:
        reader(data)
    except ValueError:  # msgspec's errors among them
        return "refused"
    return "read"
