"""The tables of `runs` and `status`, as lines or as JSON. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.model import RunPlan, TaskSpec
from orchestrator.render.grid import grid
from orchestrator.render.region import doing, hanging, numbers
from orchestrator.render.summary import cause
from orchestrator.text import count, duration, plain, signal_name
from orchestrator.view import View

_OUTCOMES = {"cluster": "not started"}
_COMMAND = 50  # characters of a command that a list shows


@dataclass(frozen=True)
class RunRow:
    plan: RunPlan
    view: View
    kept: bool  # its keeper lives on this machine


def runs_table(rows: Sequence[RunRow], *, json: bool) -> list[str]:
    """A line per run, in the order given."""
    if json:
        return [msgspec.json.encode(_run_facts(row)).decode() for row in rows]
    if not rows:
        return []
    head = ("run", "name", "began", "state", "took", "tasks", "command")
    return grid([head, *(_run_cells(row) for row in rows)])


def status_table(
    plan: RunPlan,
    view: View,
    states: Mapping[tuple[str, str], Mapping[str, Any]],
    unreachable: Mapping[str, str],
    *,
    kept: bool,
    json: bool,
    keeper: str = "",
) -> list[str]:
    """What the nodes say of each task of a run; `states` is by (attempt, task), `unreachable` by host.

    `kept` says whether its keeper lives on this machine, `keeper` who it is, as the nodes know it.
    """
    newest = max((int(attempt) for attempt, _ in states if attempt.isdigit()), default=0)
    tasks = [
        *(_task_facts(spec, view, states, unreachable) for spec in plan.tasks),
        *(
            _left_facts(plan, label, state)
            for label, state in states.items()
            if _is_left(label, state, newest)
        ),
    ]
    run = {**_run_facts(RunRow(plan, view, kept or bool(keeper))), "keeper": keeper or None}
    run["unreachable"] = dict(unreachable)
    if json:
        return [msgspec.json.encode({**run, "tasks": tasks}).decode()]
    elsewhere = f"kept by {keeper}" if keeper else "no keeper"
    who = "kept by a process of this machine" if kept else elsewhere
    named = f" ({plan.name})" if plan.name else ""
    head = f"run {plan.run}{named}: {state_word(run['state'])}" + ("" if view.ended else f", {who}")
    cells = [[task["task"], task["host"], task["attempt"], task["state"], task["said"]] for task in tasks]
    rows = grid([["task", "host", "attempt", "state", ""], *cells])
    table = [f"  {line}" for line in (*rows, *_hang(view))]
    return [plain(head), *table, *(cause(view, view.ended) if view.ended else ())]


def _hang(view: View) -> list[str]:
    """What is suspected while the run goes on, and what was found then."""
    if view.hang is None or view.ended:
        return []
    found = [f"{view.stacks.found} ({view.stacks.file})"] if view.stacks else []
    return [hanging(view.hang), *map(plain, found)]


def _run_facts(row: RunRow) -> dict[str, Any]:
    ended = row.view.ended
    return {
        "run": row.plan.run,
        "name": row.plan.name,
        "created": row.plan.created,
        "owner": row.plan.owner,
        "state": _state(row),
        "status": ended.status if ended else None,
        "seconds": ended.seconds if ended else None,
        "cause": ended.cause if ended else "",
        "kind": ended.kind if ended else "",
        "cause_task": ended.cause_task if ended else "",
        "cause_host": ended.cause_host if ended else "",
        "last_lines": ended.last_lines if ended else (),
        "hint": ended.hint if ended else "",
        "hosts": [host.name for host in row.plan.hosts],
        "command": row.plan.command,
    }


def state_word(state: str) -> str:
    """An outcome or a phase as a person calls it."""
    return _OUTCOMES.get(state, state)


def _state(row: RunRow) -> str:
    """The outcome; before it the phase; "unkept" when nobody here would see the end."""
    if row.view.ended:
        return str(row.view.ended.outcome)
    if not row.kept:
        return "unkept"
    return doing(row.view.phase.phase) if row.view.phase else "running"


def _run_cells(row: RunRow) -> list[str]:
    plan, ended = row.plan, row.view.ended
    command = shlex.join(plan.command) or "(built in)"
    return [
        plan.run,
        plan.name,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(plan.created)),
        state_word(_state(row)) + (f": {ended.kind}" if ended and ended.kind else ""),
        duration(ended.seconds) if ended else "",
        str(len(plan.tasks)),
        command if len(command) <= _COMMAND else command[: _COMMAND - 1] + "\u2026",
    ]


def _task_facts(
    spec: TaskSpec,
    view: View,
    states: Mapping[tuple[str, str], Mapping[str, Any]],
    unreachable: Mapping[str, str],
) -> dict[str, Any]:
    name = str(spec.id)
    seen = view.tasks.get(name)
    attempts = [attempt for attempt, task in states if task == name and attempt.isdigit()]
    attempt = max(attempts, key=int, default=seen.attempt if seen else "")
    node = states.get((attempt, name))
    facts: dict[str, Any] = {
        "task": name,
        "host": seen.host if seen and seen.host else spec.host,
        "attempt": attempt,
    }
    if node is None:
        why = unreachable.get(facts["host"], "")
        known = "unknown" if why else "not started"
        return {**facts, "state": known, "pid": None, "exit_code": None, "exit_signal": None, "said": why}
    state = node["state"]
    training = numbers([seen]) if seen and state["state"] == "running" else ""
    said = training or _how_it_ended(state) or state.get("message", "")
    missing = sum(gap["bytes"] for gap in state.get("gaps") or ())
    if missing:
        said += f"  {count(missing, 'byte')} of its log were lost"
    return {
        **facts,
        "state": state["state"],
        "pid": state.get("pid"),
        "exit_code": state.get("exit_code"),
        "exit_signal": state.get("exit_signal"),
        "said": said.strip(),
    }


def _is_left(label: tuple[str, str], node: Mapping[str, Any], newest: int) -> bool:
    """Whether it is alive in something else than the newest attempt.

    In a validation, perhaps without its keeper, or on a host that was replaced while it was lost.
    """
    return bool(node.get("alive")) and not (label[0].isdigit() and int(label[0]) == newest)


def _left_facts(plan: RunPlan, label: tuple[str, str], node: Mapping[str, Any]) -> dict[str, Any]:
    attempt, task = label
    host = next((spec.host for spec in plan.tasks if str(spec.id) == task), "")
    return {
        "task": task,
        "host": node.get("host", host),
        "attempt": attempt,
        "state": node["state"]["state"],
        "pid": node["state"].get("pid"),
        "exit_code": None,
        "exit_signal": None,
        "said": "",
    }


def _how_it_ended(state: Mapping[str, Any]) -> str:
    if state.get("exit_signal") is not None:
        return f"killed by {signal_name(state['exit_signal'])}"
    return "" if state.get("exit_code") is None else f"exit status {state['exit_code']}"
