"""The tables of `runs`, `status` and `status --machines`, as lines or as JSON. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.events import FailureKind, Outcome
from orchestrator.model import RunPlan, TaskSpec
from orchestrator.ranges import grouped
from orchestrator.render import fold
from orchestrator.render.board import doing, hanging, later, numbers, task_table
from orchestrator.render.board import facts as numbers_of
from orchestrator.render.grid import table
from orchestrator.render.summary import cause
from orchestrator.run import hang
from orchestrator.run.view import View
from orchestrator.store.folder import decode_plan
from orchestrator.store.key import opened
from orchestrator.text import count, cut, duration, json_of, moment, plain, signal_name, size
from orchestrator.value import Value

if TYPE_CHECKING:
    from orchestrator.verbs.status import Machines, StatusReport

_OUTCOMES = {"cluster": "not started"}
_HOSTS = 30  # characters of the hosts
_NAME = 8  # of the name of a run, at least
# `ann@laptop, pid 4242`: how a keeper identifies itself to the nodes.
_KEEPER = re.compile(r"(.{1,100})@(.{1,255}), pid (\d{1,10})")


class RunRow(Value):
    plan: RunPlan
    view: View
    kept: bool  # its keeper runs on this machine


def runs_table(
    rows: Sequence[RunRow], *, json: bool, width: int | None = None, now: float | None = None
) -> list[str]:
    """Return a line per run, in the given order."""
    if json:
        return [json_of(_run_facts(row)).decode() for row in rows]
    if not rows:
        return []
    head = ("run", "name", "state", "started", "took", "loss", "tasks", "hosts", "command")
    cells = [_run_cells(row, now) for row in rows]
    whole = max(map(len, table(head, cells, None)))
    # The last part of an id is enough: the date has a column of its own.
    if width is not None and whole > width:
        cells = [[run[0].rpartition("-")[2], *run[1:]] for run in cells]
        room = width - sum(2 + max(len(head[n]), *(len(run[n]) for run in cells)) for n in (0, 2, 3, 4, 5))
        cells = [[run[0], cut(run[1], max(_NAME, room)), *run[2:]] for run in cells]
    return table(head, cells, width, ("tasks", "hosts", "command"), ("took", "loss"))


def refused(row: RunRow) -> bool:
    """Return True if a launch ended without starting a task."""
    return row.view.ended is not None and not row.view.launched


def status_table(
    report: StatusReport, *, json: bool, now: float = 0.0, width: int | None = None, height: int | None = None
) -> list[str]:
    """Return the nodes' reports on each task of a run.

    Of more tasks than `height` allows, those in the least common states are shown.
    """
    plan, view, kept, keeper = report.plan, report.view, report.kept, report.keeper
    newest = max((int(attempt) for attempt, _ in report.states if attempt.isdigit()), default=0)
    tasks = [
        *(_task_facts(spec, report) for spec in plan.tasks),
        # What is alive in another attempt: a validation, or a host that was replaced while it was lost.
        *(
            {"task": task, "host": host, "attempt": attempt, "state": node.state.state, "pid": node.state.pid}
            | {"exit_code": None, "exit_signal": None, "said": ""}
            for (attempt, task), (host, node) in report.states.items()
            if node.alive and attempt != str(newest)
        ),
    ]
    run = {**_run_facts(RunRow(plan, view, kept or bool(keeper))), "keeper": None}
    if match := _KEEPER.fullmatch(keeper):
        run["keeper"] = {"host": match[2], "user": match[1], "pid": int(match[3])}
    run["unreachable"] = dict(report.unreachable)
    if json:
        for task in tasks:  # without text; None is the attempt of a validation
            del task["said"]
            task["attempt"] = int(task["attempt"]) if task["attempt"].isdigit() else None
        return [json_of({**run, "tasks": tasks}).decode()]
    elsewhere = f"kept by {keeper}" if keeper else "no keeper"
    who = "kept by a process of this machine" if kept else elsewhere
    named = f" ({plan.name})" if plan.name else ""
    head = f"run {plan.run}{named}: {run['state']}" + ("" if view.ended else f", {who}")
    tasks, more = _shortened(tasks, height)
    rows = task_table([_cells(task, now) for task in tasks], None if width is None else width - 2) + more
    if view.apart is not None and not view.ended:
        rows.append(f"warning: {hang.separate_warning(view.apart)}")
    if view.hang is not None and not view.ended:
        rows.append(hanging(view.hang))
        rows += [f"{view.stacks.found} ({view.stacks.file})"] if view.stacks else []
    shown = [f"  {plain(line)}" for line in rows]
    return [plain(head), *shown, *(cause(view, view.ended, shown=False) if view.ended else ())]


_OTHER_LINES = 8  # of a status, beside its tasks


def _shortened(tasks: list[dict[str, Any]], height: int | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tasks that fit, those in the least common states first, and a line about the others."""
    if height is None or len(tasks) <= max(1, height - _OTHER_LINES):
        return tasks, []
    times = Counter(str(task["state"]) for task in tasks)
    tasks = sorted(tasks, key=lambda task: times[str(task["state"])])
    most = max(1, height - _OTHER_LINES)
    rest = Counter(str(task["state"]) for task in tasks[most:])
    words = ", ".join(f"{number:,} {state}" for state, number in rest.items())
    return tasks[:most], [f"and {count(rest.total(), 'more task')}: {words}"]


def _cells(task: dict[str, Any], now: float) -> dict[str, str]:
    """Return a task as a row: its numbers while it runs, otherwise a text."""
    named = {name: str(task[name]) for name in ("task", "host", "state")}
    named |= {"attempt": later(task["attempt"]), "": task["said"]}
    runs = task["state"] == wire.TaskPhase.RUNNING and "step" in task and not task["said"]
    return {**numbers(task, now), **named} if runs else named


def _run_facts(row: RunRow) -> dict[str, Any]:
    plan, ended = row.plan, row.view.ended  # of which None has no fields
    names = ("cause", "kind", "cause_task", "cause_host", "hint")
    return {
        **{name: getattr(plan, name) for name in ("run", "name", "created", "owner")},
        "state": state_of(row.view, kept=row.kept),
        **{name: getattr(ended, name, None) for name in ("status", "seconds")},
        **{name: getattr(ended, name, "") for name in names},
        "last_lines": getattr(ended, "last_lines", ()),
        "loss": row.view.loss,
        "apart": row.view.apart.apart if row.view.apart else (),
        "hosts": [host.name for host in plan.hosts],
        "command": plan.command,
    }


def state_word(state: str) -> str:
    """Return the user's term for an outcome or a phase."""
    return _OUTCOMES.get(state, state)


def state_of(view: View, *, kept: bool) -> str:
    """Return the outcome; before it the phase; "unkept" if nobody here would observe the end."""
    if view.ended:
        return state_word(str(view.ended.outcome))
    if not kept:
        return "unkept"
    return doing(view.phase.phase) if view.phase else "running"


def _run_cells(row: RunRow, now: float | None) -> list[str]:
    plan, ended = row.plan, row.view.ended
    lasted = now - plan.created if now is not None and row.kept else None
    # For a run that was never started the outcome says as much as the kind.
    kind = ended.kind if ended and (ended.outcome, ended.kind) != (Outcome.CLUSTER, FailureKind.START) else ""
    return [
        plan.run,
        plan.name,
        ": ".join(filter(None, (state_of(row.view, kept=row.kept), kind))),
        moment("%Y-%m-%d %H:%M", plan.created),
        duration(ended.seconds) if ended else "" if lasted is None else duration(lasted),
        "" if (loss := row.view.loss) is None else f"{loss:.4g}",
        str(len(plan.tasks)),
        cut(fold.names(host.name for host in plan.hosts), _HOSTS),
        fold.command(plan.command) or "(built in)",
    ]


def _task_facts(spec: TaskSpec, report: StatusReport) -> dict[str, Any]:
    name = str(spec.id)
    task_view = report.view.tasks.get(name)
    attempts = [attempt for attempt, task in report.states if task == name and attempt.isdigit()]
    attempt = max(attempts, key=int, default=task_view.attempt if task_view else "")
    node = report.states.get((attempt, name))
    facts: dict[str, Any] = {
        "task": name,
        "host": task_view.host if task_view and task_view.host else spec.host,
        "attempt": attempt,
        **numbers_of(task_view, report.vitals.of({attempt}).tasks.get(name)),
    }
    if node is None:
        facts |= {"state": "not started", "pid": None, "exit_code": None, "exit_signal": None, "said": ""}
        if why := report.unreachable.get(facts["host"], ""):
            facts |= {"state": "unknown", "said": why}
        elif task_view and (exited := task_view.exited):
            facts |= {"state": "lost" if exited.lost else "exited", "exit_code": exited.code}
            text = exited.lost or _end_words(exited.code, exited.signal)
            facts |= {"exit_signal": exited.signal, "said": text}
        elif task_view and task_view.started is not None:
            facts |= {"state": "lost", "said": "its folder on the node was removed"}
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


# --- who uses which host, and their progress ---

_LONG = 40  # characters of a host's text about others


class MachineRow(Value):
    host: str
    user: str = ""
    run: str = ""
    tasks: Sequence[str] = ()
    gpus: str = ""
    since: float | None = None  # seconds since the epoch, by our clock
    progress: str = ""
    said: str = ""


def machine_rows(host: str, machines: Machines) -> Iterator[MachineRow]:
    """Return who uses a host: runs of this login, and of others, processes on GPUs; or that it is free."""
    if host in machines.errors:
        yield MachineRow(host, said=machines.errors[host])
        return
    reply, gpus, ahead = machines.states[host], machines.gpus[host], machines.ahead.get(host, 0.0)
    living = [(run, [task for task in run.tasks if task.alive]) for run in reply.runs]
    rows = [_of_run(host, run, tasks, machines, ahead) for run, tasks in living if tasks]
    for user, run, since in gpus.others:
        rows.append(MachineRow(host, cut(user, _LONG), cut(run, _LONG), since=since / 1e9))
    for gpu in gpus.gpus:
        for words in filter(None, gpu.fields.get("users", "").split("; ")):
            if not any(row.run and f"(run {row.run}, " in words for row in rows):
                rows.append(MachineRow(host, gpus=str(gpu.index), said=words))
    if reply.standbys:
        memory = sum(task.memory for task in reply.standbys)  # 0 until they have imported
        what = f"{count(len(reply.standbys), 'task')} kept warm ({size(memory) if memory else 'importing'})"
        rows.append(MachineRow(host, said=f"{what}: {cut(reply.standbys[0].command, _LONG)}"))
    yield from rows or [MachineRow(host, said="free")]


def _of_run(
    host: str, run: wire.RunStatus, tasks: Sequence[wire.TaskStatus], machines: Machines, ahead: float
) -> MachineRow:
    names = [task.task for task in tasks]
    try:
        plan = decode_plan(opened(run.plan or "", None).plan)
        user, specs = cut(plan.owner, _LONG), [spec for spec in plan.tasks if str(spec.id) in names]
    except ValueError:  # of another version, or false
        user, specs = "", []
    gpus = cut(",".join(spec.env.get("CUDA_VISIBLE_DEVICES", "") for spec in specs).strip(","), _LONG)
    view, vitals = machines.progress(run.run)
    vital = vitals.of({task.attempt for task in tasks}).tasks.get(names[0])
    figures = numbers(numbers_of(view.tasks.get(names[0]), vital), 0.0)
    far = ", ".join(f"{key} {figures[key]}" for key in ("epoch", "step", "loss") if figures[key])
    far = far if any(task.attempt.isdigit() for task in tasks) else "validation"
    started = (task.state.started_ns for task in tasks)
    since = min((at / 1e9 - ahead for at in started if at), default=None)
    return MachineRow(host, user, run.run, names, gpus, since, far)


def machines_table(
    rows: Sequence[MachineRow], *, json: bool, now: float, width: int | None, height: int | None = None
) -> list[str]:
    """Return a row for each host and user; if that exceeds `height`, one for hosts with the same use."""
    if json:
        return [json_of(row).decode() for row in rows]
    cells: list[Sequence[str]] = []
    for row in rows:
        since = "" if row.since is None else duration(now - row.since)
        who = row.host, row.user, row.run, fold.names(row.tasks), row.gpus
        cells.append((*who, since, row.progress or row.said))
    more: list[str] = []
    if height is not None and len(rows) >= height:
        uses = grouped(((row.user, row.run, row.said), row) for row in rows)
        cells = [_use(use, of, now) for use, of in uses.items()]
        if len(cells) >= height:
            hosts = [row.host for of in list(uses.values())[height - 2 :] for row in of]
            cells, more = cells[: height - 2], [f"and others on {fold.names(hosts)}"]
    head = ("host", "user", "run", "tasks", "GPUs", "since", "doing")
    return table(head, cells, width, ("GPUs", "tasks", "user")) + more


def _use(use: tuple[str, str, str], rows: Sequence[MachineRow], now: float) -> Sequence[str]:
    """Return one row for hosts with the same use."""
    user, run, remark = use
    since = [row.since for row in rows if row.since is not None]
    tasks = fold.names(task for row in rows for task in row.tasks)
    began = duration(now - min(since)) if since else ""
    progress = {row.progress for row in rows}
    return (
        fold.names(row.host for row in rows),
        *(user, run, tasks, "", began),
        remark or (progress.pop() if len(progress) == 1 else ""),
    )
