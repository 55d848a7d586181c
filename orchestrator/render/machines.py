"""The table of `status --machines`: who uses which host, and how far they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import msgspec

from orchestrator import wire
from orchestrator.planning.seal import opened
from orchestrator.render import fold
from orchestrator.render.board import facts, numbers
from orchestrator.render.grid import table
from orchestrator.run.view import View
from orchestrator.run.vitals import Vitals
from orchestrator.store.folder import decode_plan
from orchestrator.text import cut, duration, utf8

_LONG = 40  # characters of what a host says of others
Progress: TypeAlias = Callable[[str], tuple[View, Vitals]]  # of a run, as far as this machine knows it


@dataclass(frozen=True)
class MachineRow:
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
    known = numbers(facts(view.tasks.get(names[0]), seen), 0.0)
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
