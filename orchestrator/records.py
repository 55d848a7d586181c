"""What a node says of a task, read: the records of its report, and its final state. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.events import Event, Loss, TaskProgressed, TaskReady, TaskReported
from orchestrator.gang import End
from orchestrator.model import TaskId


def final(state: Mapping[str, Any], clock_offset: float, now: float) -> tuple[End, dict[str, Any]]:
    """How a task ended by its final state, and what else TaskExited says of it.

    `clock_offset` is how far the node's clock is ahead of ours, in seconds; `now` the time of an end that
    the node did not see.
    """
    started, ended = state.get("started_ns"), state.get("ended_ns")
    lost, loss, oom = "", Loss.NONE, state.get("oom") or {}
    if state["state"] == "lost":
        lost = state.get("message", "") or "its supervisor was killed"
    if state["state"] == "unstarted":
        lost, loss = state.get("message", "") or "it could not be started", Loss.UNSTARTED
    if restarted := state.get("restarted_ns"):
        when = time.localtime(restarted / 1e9 - clock_offset)
        lost, loss = f"{lost} at {time.strftime('%H:%M', when)}", Loss.RESTARTED
    end = End(
        code=state.get("exit_code"),
        signal=state.get("exit_signal"),
        lost=lost,
        stopped=state.get("want", "run") != "run",
        seconds=(ended - started) / 1e9 if started and ended else 0.0,
        ended=(ended / 1e9 - clock_offset) if ended else now,
    )
    more = {
        "note": "" if lost else state.get("message", ""),
        "loss": loss,
        "oom_kills": oom.get("kills", 0),
        "oom_limit": oom.get("limit"),
    }
    return end, more


def reported(task: TaskId, line: bytes) -> Event | None:
    """The event that one line of a task's report stands for; None for a kind we do not know.

    Raise ValueError for a line that is no JSON object.
    """
    record = msgspec.json.decode(line, type=dict[str, Any])
    match record.get("kind"):
        case "ready":
            return TaskReady(str(task), str(record.get("note", "")))
        case "progress":
            step = record.get("step")
            return TaskProgressed(
                str(task),
                step if isinstance(step, int) else 0,
                _number(record.get("loss")),
                _number(record.get("steps_per_second")),
            )
        case "result" | "error" as kind:
            return TaskReported(str(task), kind, {k: v for k, v in record.items() if k != "kind"})
    return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
