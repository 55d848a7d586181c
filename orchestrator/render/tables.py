"""The tables of `runs`, `status` and `status --machines`, as lines or as JSON. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from orchestrator import wire
from orchestrator.events import FailureKind, Outcome
from orchestrator.model import RunPlan, TaskSpec
from orchestrator.render import fold
from orchestrator.render.board import doing, hanging, later, numbers, task_table
from orchestrator.render.board import facts as numbers_of
from orchestrator.render.grid import table
from orchestrator.render.summary import cause
from orchestrator.run import peers
from orchestrator.run.view import View
from orchestrator.run.vitals import Vitals
from orchestrator.store.folder import decode_plan
from orchestrator.store.key import opened
from orchestrator.text import count, cut, duration, moment, plain, signal_name, utf8

_OUTCOMES = {"cluster": "not started"}
_HOSTS = 30  # characters of the hosts
_NAME = 8  # of the name of a run, at least
STATES = ("succeeded", "failed", "stopped", "not-started", "running", "unkept")
# `ann@laptop, pid 4242`: how a keeper introduces itself to the nodes.
_KEEPER = re.compile(r"(.{1,100})@(.{1,255}), pid (\d{1,10})")

NodeTasks: TypeAlias = Mapping[tuple[str, str], tuple[str, wire.TaskStatus]]  # (attempt, task) -> host, state


class RunRow(Struct, frozen=True):
    plan: RunPlan
    view: View
    kept: bool  # its keeper lives on this machine


def runs_table(
    rows: Sequence[RunRow], *, json: bool, width: int | None = None, now: float | None = None
) -> list[str]:
    """A line per run, in the order given."""
    if json:
        return [msgspec.json.encode(utf8(_run_facts(row))).decode() for row in rows]
    if not rows:
        return []
    head = ("run", "name", "state", "started", "took", "loss", "tasks", "hosts", "command")
    cells = [_run_cells(row, now) for row in rows]
    whole = max(map(len, table(head, cells, None)))
    if (
        width is not None and whole > width
    ):  # the last part of an id says as much as the whole: the date has a column, too
        cells = [[run[0].rpartition("-")[2], *run[1:]] for run in cells]
        left = width - sum(2 + max(len(head[n]), *(len(run[n]) for run in cells)) for n in (0, 2, 3, 4, 5))
        cells = [[run[0], cut(run[1], max(_NAME, left)), *run[2:]] for run in cells]
    return table(head, cells, width, ("tasks", "hosts", "command"), ("took", "loss"))


def refused(row: RunRow) -> bool:
    """Tell whether a launch has ended without a task."""
    return row.view.ended is not None and not row.view.launched


def is_state(row: RunRow, state: str) -> bool:
    """Tell whether a run is in one of STATES."""
    known = state_of(row).replace(" ", "-")
    return known == state or (state == "running" and known not in STATES)


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
    rows = task_table([_cells(task, now) for task in tasks], None if width is None else width - 2)
    if view.apart is not None and not view.ended:
        rows.append(f"warning: {peers.warning(view.apart)}")
    if view.hang is not None and not view.ended:
        rows.append(hanging(view.hang))
        rows += [f"{view.stacks.found} ({view.stacks.file})"] if view.stacks else []
    shown = [f"  {plain(line)}" for line in rows]
    return [plain(head), *shown, *(cause(view, view.ended, told=False) if view.ended else ())]


def _cells(task: dict[str, Any], now: float) -> dict[str, str]:
    """A task as a row: its numbers while it runs, in their place what is said of it."""
    named = {name: str(task[name]) for name in ("task", "host", "state")}
    named |= {"attempt": later(task["attempt"]), "": task["said"]}
    runs = task["state"] == wire.TaskPhase.RUNNING and "step" in task and not task["said"]
    return {**numbers(task, now), **named} if runs else named


def _run_facts(row: RunRow) -> dict[str, Any]:
    plan, ended = row.plan, row.view.ended  # of which None has no fields
    words = ("cause", "kind", "cause_task", "cause_host", "hint")
    return {
        **{name: getattr(plan, name) for name in ("run", "name", "created", "owner")},
        "state": state_of(row),
        **{name: getattr(ended, name, None) for name in ("status", "seconds")},
        **{name: getattr(ended, name, "") for name in words},
        "last_lines": getattr(ended, "last_lines", ()),
        "loss": row.view.loss,
        "apart": row.view.apart.apart if row.view.apart else (),
        "hosts": [host.name for host in plan.hosts],
        "command": plan.command,
    }


def state_word(state: str) -> str:
    """An outcome or a phase as a person calls it."""
    return _OUTCOMES.get(state, state)


def state_of(row: RunRow) -> str:
    """The outcome; before it the phase; "unkept" when nobody here would see the end."""
    if row.view.ended:
        return state_word(str(row.view.ended.outcome))
    if not row.kept:
        return "unkept"
    return doing(row.view.phase.phase) if row.view.phase else "running"


def _run_cells(row: RunRow, now: float | None) -> list[str]:
    plan, ended = row.plan, row.view.ended
    lasted = now - plan.created if now is not None and row.kept else None
    # Of a run that was never started the outcome says as much as the kind.
    kind = ended.kind if ended and (ended.outcome, ended.kind) != (Outcome.CLUSTER, FailureKind.START) else ""
    return [
        plan.run,
        plan.name,
        f"{state_of(row)}: {kind}" if kind else state_of(row),
        moment("%Y-%m-%d %H:%M", plan.created),
        duration(ended.seconds) if ended else "" if lasted is None else duration(lasted),
        "" if (loss := row.view.loss) is None else f"{loss:.4g}",
        str(len(plan.tasks)),
        cut(fold.names(host.name for host in plan.hosts), _HOSTS),
        shlex.join(plan.command) or "(built in)",
    ]


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
        **numbers_of(seen, vitals.of({attempt}).tasks.get(name)),
    }
    if node is None:
        exited = seen.exited if seen else None
        known, said = "not started", ""
        if why := unreachable.get(facts["host"], ""):
            known, said = "unknown", why
        elif exited is not None:
            how = exited.lost or _end_words(exited.code, exited.signal)
            known, said = "lost" if exited.lost else "exited", how
        elif seen is not None and seen.started is not None:
            known, said = "lost", "its folder on the node was removed"
        ends = (exited.code, exited.signal) if exited and not why else (None, None)
        facts |= {"state": known, "pid": None, "exit_code": ends[0], "exit_signal": ends[1], "said": said}
        return facts
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


def _end_words(code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"killed by {signal_name(signal)}"
    return "" if code is None else f"exit status {code}"


# --- who uses which host, and how far they are ---

_LONG = 40  # characters of what a host says of others
Progress: TypeAlias = Callable[[str], tuple[View, Vitals]]  # of a run, as far as this machine knows it


class MachineRow(Struct, frozen=True):
    host: str
    user: str = ""
    run: str = ""
    tasks: Sequence[str] = ()
    gpus: str = ""
    since: float | None = None  # seconds since the epoch, by our clock
    progress: str = ""
    said: str = ""


def machine_rows(
    host: str, told: wire.Runs, look: wire.GpuLook, progress: Progress, ahead: float
) -> Iterator[MachineRow]:
    """List who uses a host: runs of this login, tasks of others, processes on GPUs; else that it is free."""
    living = [(run, [task for task in run.tasks if task.alive]) for run in told.runs]
    rows = [_of_run(host, run, tasks, progress, ahead) for run, tasks in living if tasks]
    for user, run, task, since in look.others:
        who, which, tasks = cut(user, _LONG), cut(run, _LONG), [cut(task, _LONG)] if task else []
        said = "" if run else "a task of orchestrate, of which no more can be seen"
        rows.append(MachineRow(host, who, which, tasks, since=since / 1e9 - ahead, said=said))
    for gpu in look.gpus:
        for words in filter(None, gpu.fields.get("users", "").split("; ")):
            if not any(row.run and f"(run {row.run}, " in words for row in rows):
                rows.append(MachineRow(host, gpus=str(gpu.index), said=words))
    yield from rows or [MachineRow(host, said="free")]


def _of_run(
    host: str, run: wire.RunStatus, tasks: Sequence[wire.TaskStatus], progress: Progress, ahead: float
) -> MachineRow:
    names = [task.task for task in tasks]
    try:
        plan = decode_plan(opened(run.plan or "", None).plan)
        user, specs = cut(plan.owner, _LONG), [spec for spec in plan.tasks if str(spec.id) in names]
    except ValueError:  # of another version, or a lie
        user, specs = "", []
    gpus = cut(",".join(spec.env.get("CUDA_VISIBLE_DEVICES", "") for spec in specs).strip(","), _LONG)
    view, vitals = progress(run.run)
    seen = vitals.of({task.attempt for task in tasks}).tasks.get(names[0])
    known = numbers(numbers_of(view.tasks.get(names[0]), seen), 0.0)
    far = ", ".join(f"{key} {known[key]}" for key in ("epoch", "step", "loss") if known[key])
    far = far if any(task.attempt.isdigit() for task in tasks) else "validation"
    started = (task.state.started_ns for task in tasks)
    since = min((at / 1e9 - ahead for at in started if at), default=None)
    return MachineRow(host, user, run.run, names, gpus, since, far)


def machines_table(rows: Sequence[MachineRow], *, json: bool, now: float, width: int | None) -> list[str]:
    if json:
        return [msgspec.json.encode(utf8(asdict(row))).decode() for row in rows]
    cells = []
    for row in rows:
        since = "" if row.since is None else duration(now - row.since)
        who = row.host, row.user, row.run, fold.names(row.tasks), row.gpus
        cells.append((*who, since, row.progress or row.said))
    head = ("host", "user", "run", "tasks", "GPUs", "since", "doing")
    return table(head, cells, width, ("GPUs", "tasks", "user"))
