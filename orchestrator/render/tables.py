"""The tables of `runs` and `status`, as lines or as JSON. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from orchestrator import wire
from orchestrator.events import FailureKind, Outcome, RunEnded, TaskExited
from orchestrator.model import RunPlan, TaskSpec
from orchestrator.render import fold
from orchestrator.render.board import BoardLine, attempt_of, numbers
from orchestrator.render.board import rows as board_rows
from orchestrator.render.grid import table
from orchestrator.render.region import doing, hanging
from orchestrator.render.summary import cause
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import TaskView, View
from orchestrator.run.vitals import Vital, Vitals
from orchestrator.text import count, cut, duration, plain, signal_name, utf8

_OUTCOMES = {"cluster": "not started"}
_HOSTS = 30  # characters of the hosts
_WIDE = 10_000  # cells, where nobody counts them
# `ann@laptop, pid 4242`: how a keeper introduces itself to the nodes.
_KEEPER = re.compile(r"(.{1,100})@(.{1,255}), pid (\d{1,10})")

NodeTasks: TypeAlias = Mapping[tuple[str, str], tuple[str, wire.TaskStatus]]  # (attempt, task) -> host, state


@dataclass(frozen=True)
class RunRow:
    plan: RunPlan
    view: View
    kept: bool  # its keeper lives on this machine


def runs_table(rows: Sequence[RunRow], *, json: bool, width: int | None = None) -> list[str]:
    """A line per run, in the order given."""
    if json:
        return [msgspec.json.encode(utf8(_run_facts(row))).decode() for row in rows]
    if not rows:
        return []
    head = ("run", "name", "state", "took", "tasks", "hosts", "command")
    return table(head, list(map(_run_cells, rows)), width, ("tasks", "took", "hosts", "command", "name"))


def status_table(
    plan: RunPlan,
    view: View,
    states: NodeTasks,
    unreachable: Mapping[str, str],
    *,
    kept: bool,
    json: bool,
    keeper: str = "",
    vitals: Vitals = Vitals(),  # noqa: B008 - frozen
    now: float = 0.0,
    width: int | None = None,
) -> list[str]:
    """Word what the nodes say of each task of a run; `unreachable` is by host.

    `kept` says whether its keeper lives on this machine, `keeper` who it is, as the nodes know it, and
    `vitals` what it sees of the tasks now (s since the epoch).
    """
    newest = max((int(attempt) for attempt, _ in states if attempt.isdigit()), default=0)
    tasks = [
        *(_task_facts(spec, view, states, unreachable, vitals) for spec in plan.tasks),
        # What is alive in something else: a validation, or a host that was replaced while it was lost.
        *(
            {"task": task, "host": host, "attempt": attempt, "state": node.state.state, "pid": node.state.pid}
            | {"exit_code": None, "exit_signal": None, "said": ""}
            for (attempt, task), (host, node) in states.items()
            if node.alive and attempt != str(newest)
        ),
    ]
    run = {**_run_facts(RunRow(plan, view, kept or bool(keeper))), "keeper": None}
    if match := _KEEPER.fullmatch(keeper):
        run["keeper"] = {"host": match[2], "user": match[1], "pid": int(match[3])}
    run["unreachable"] = dict(unreachable)
    if json:
        for task in tasks:  # without words; None is the attempt of a validation
            del task["said"]
            task["attempt"] = int(task["attempt"]) if task["attempt"].isdigit() else None
        return [msgspec.json.encode(utf8({**run, "tasks": tasks})).decode()]
    elsewhere = f"kept by {keeper}" if keeper else "no keeper"
    who = "kept by a process of this machine" if kept else elsewhere
    named = f" ({plan.name})" if plan.name else ""
    head = f"run {plan.run}{named}: {run['state']}" + ("" if view.ended else f", {who}")
    lines = [_line(task, view, vitals, now) for task in tasks]
    rows = ["".join(text for text, _ in row).rstrip() for row in board_rows(lines, (width or _WIDE) - 2)]
    if view.hang is not None and not view.ended:
        rows.append(hanging(view.hang))
        rows += [f"{view.stacks.found} ({view.stacks.file})"] if view.stacks else []
    shown = [f"  {plain(line)}" for line in rows]
    return [plain(head), *shown, *(cause(view, view.ended) if view.ended else ())]


def _line(task: dict[str, Any], view: View, vitals: Vitals, now: float) -> BoardLine:
    """A task as a row: its numbers while it runs, in their place what is said of it."""
    named = {name: (str(task[name]), "") for name in ("task", "host", "state")}
    seen = view.tasks.get(task["task"])
    vital = vitals.of({task["attempt"]}).tasks.get(task["task"])
    if task["said"] or task["state"] != wire.TaskPhase.RUNNING or seen is None:
        return BoardLine({**named, **attempt_of(task["attempt"])}, (plain(task["said"]), ""))
    return BoardLine({**named, **attempt_of(task["attempt"]), **numbers([(seen, vital)], now)})


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
        return state_word(str(row.view.ended.outcome))
    if not row.kept:
        return "unkept"
    return doing(row.view.phase.phase) if row.view.phase else "running"


def _run_cells(row: RunRow) -> list[str]:
    plan, ended = row.plan, row.view.ended
    return [
        plan.run,
        plan.name,
        _ended_word(ended) if ended else _state(row),
        duration(ended.seconds) if ended else "",
        str(len(plan.tasks)),
        cut(fold.names(host.name for host in plan.hosts), _HOSTS),
        shlex.join(plan.command) or "(built in)",
    ]


def _ended_word(ended: RunEnded) -> str:
    """`failed: hang`; of a run that was never started the outcome alone, which says as much as `start`."""
    outcome = state_word(str(ended.outcome))
    plain_start = ended.outcome is Outcome.CLUSTER and ended.kind == FailureKind.START
    return outcome if plain_start or not ended.kind else f"{outcome}: {ended.kind}"


def _task_facts(
    spec: TaskSpec, view: View, states: NodeTasks, unreachable: Mapping[str, str], vitals: Vitals
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
        **_progress(seen, vitals.of({attempt}).tasks.get(name)),
    }
    if node is None:
        why = unreachable.get(facts["host"], "")
        if not why and seen is not None and seen.started is not None:
            return {**facts, "pid": None, **_forgotten(seen.exited)}
        known = "unknown" if why else "not started"
        return {**facts, "state": known, "pid": None, "exit_code": None, "exit_signal": None, "said": why}
    state = node[1].state
    lost = f"{count(state.missing, 'byte')} of its log were lost" if state.missing else ""
    end = _end_words(state.exit_code, state.exit_signal) or state.message
    return {
        **facts,
        "state": state.state,
        "pid": state.pid,
        "exit_code": state.exit_code,
        "exit_signal": state.exit_signal,
        "lost_bytes": state.missing,
        "message": state.message,
        "said": "; ".join(filter(None, (end, lost))),
    }


def _progress(seen: TaskView | None, vital: Vital | None) -> dict[str, Any]:
    """How far a task is (by its reports, else by Keras' lines) and what it uses; None: not known."""
    fit = vital.fit if vital and vital.fit else Fit()
    reports = seen is not None and seen.step is not None
    return {
        "epoch": fit.epoch,
        "epochs": fit.epochs,
        "step": seen.step if seen and reports else fit.step,
        "steps": None if reports else fit.steps,
        "loss": seen.loss if seen and reports else fit.loss,
        "steps_per_second": seen.steps_per_second if seen and reports else fit.steps_per_second,
        "heard": vital.heard if vital else None,
        "cpu": vital.cpu if vital else None,
        "memory": vital.memory if vital else None,
        "gpu_memory": vital.gpu_memory if vital else None,
        "gpu_busy": vital.gpu_busy if vital else None,
    }


def _forgotten(exited: TaskExited | None) -> dict[str, Any]:
    """A task that was started, and of which its node knows nothing any more."""
    if exited is None:
        why = "its folder on the node was removed"
        return {"state": "lost", "exit_code": None, "exit_signal": None, "said": why}
    end = {"exit_code": exited.code, "exit_signal": exited.signal}
    how = _end_words(exited.code, exited.signal)
    return {**end, "state": "lost" if exited.lost else "exited", "said": exited.lost or how}


def _end_words(code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"killed by {signal_name(signal)}"
    return "" if code is None else f"exit status {code}"
