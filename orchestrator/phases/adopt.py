"""Taking over a run whose keeper is gone: from its folder, or from the nodes alone."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import HostError
from orchestrator.events import (
    Event,
    Phase,
    RunAdopted,
    RunEnded,
    RunLeft,
    RunPlanned,
    StopRequested,
    TaskExited,
    TaskStarted,
    TreeSynced,
)
from orchestrator.fleet import Answers, Reply
from orchestrator.model import RunPlan
from orchestrator.phases.connect import keep, open_sessions
from orchestrator.phases.context import Run, phase, report_failures
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of

_HANDOVER = 5.0  # seconds in which the agents of a killed keeper notice that it is gone


@dataclass(frozen=True)
class Adopted:
    attempt: int
    missing: str  # a task of it that was never started; "" when all were
    exits: tuple[TaskExited, ...]
    stopping: str  # why the last keeper was ending the attempt, "failure" or "completion"; "" when it was not
    over: RunEnded | None  # it has ended before: only what was left of it is to be ended


def announce(run: Run) -> None:
    """Say what the run is."""
    run.bus.emit(announcement(run.folder, run.plan))


def announcement(folder: RunFolder, plan: RunPlan) -> RunPlanned:
    tasks = tuple((str(spec.id), spec.host) for spec in plan.tasks)
    return RunPlanned(plan.run, plan.name, plan.owner, plan.command, tasks, plan.notes, str(folder.path))


def adopt(run: Run) -> Adopted | RunLeft:
    """Find out how far the run had come.

    `RunLeft` when it cannot be kept from here: no host answers, or another keeper lives.
    """
    history = [stamped.event for stamped in events_of(run.folder)]
    if not any(isinstance(event, RunPlanned) for event in history):
        announce(run)
    if not run.plan.tree:
        synced = (event.digest for event in history if isinstance(event, TreeSynced))
        run.plan = dataclasses.replace(run.plan, tree=next(synced, ""))
    if _was_being_stopped(history):
        run.stop.ask(kill=False)
    with phase(run, Phase.CONNECT):
        # Hosts that were replaced may still run what they had: nobody else ends it there.
        bad = open_sessions(run, (*run.hosts, *run.plan.retired) if run.stop.asked else None)
        report_failures(run.bus, Phase.CONNECT, bad)
        refused = _become_keeper(run) if run.fleet.sessions else {}
    if not run.fleet.sessions:
        why = "none of its hosts can be reached"
        return RunLeft(run.id, why, f"orchestrate status {run.id}, when they answer again")
    kept = next((error for error in refused.values() if error.kind == "kept"), None)
    if kept is not None and not run.stop.asked:
        return RunLeft(run.id, f"{kept.why}, as {kept.host} says", kept.hint)
    run.bus.emit(RunAdopted(run.id, run.who))
    report_failures(run.bus, Phase.CONNECT, {n: e for n, e in refused.items() if e.kind != "kept"})
    states = run.fleet.ask("states", lambda _: {"run": run.id})
    found = _tasks(states)
    attempts = {attempt for attempt, _ in found if attempt.isdigit()}  # the others are validations
    # The last keeper may have planned an attempt of which nothing was started.
    attempt = max([*attempts, str(run.plan.attempt)], key=int)
    missing = [
        str(spec.id)
        for spec in run.plan.tasks
        if spec.host in states.good and (attempt, str(spec.id)) not in found
    ]
    over = next((event for event in reversed(history) if isinstance(event, RunEnded)), None)
    if missing:
        return Adopted(int(attempt), missing[0], (), "", over)
    known = {(event.attempt, event.task) for event in history if isinstance(event, TaskStarted)}
    for spec in run.plan.tasks:
        state = found.get((attempt, str(spec.id)))
        if (attempt, str(spec.id)) not in known:
            run.bus.emit(TaskStarted(str(spec.id), spec.host, attempt, (state or {}).get("pid") or 0))
    # What was given up as lost is asked for again: its host may know better now.
    ends = [e for e in history if isinstance(e, TaskExited) and e.attempt == attempt and not e.lost]
    exits = tuple({end.task: end for end in ends}.values())
    return Adopted(int(attempt), "", exits, _stopping(history, attempt), over)


def _stopping(history: list[Event], attempt: str) -> str:
    """Why an attempt was being ended, if not for a user."""
    by = ""
    for event in history:
        if isinstance(event, TaskStarted) and event.attempt == attempt:
            by = ""
        elif isinstance(event, StopRequested) and event.by != "user":
            by = event.by
    return by


def _was_being_stopped(history: list[Event]) -> bool:
    """Whether the last keeper was killed while it ended the run for a user."""
    since = max((n for n, event in enumerate(history) if isinstance(event, RunEnded)), default=-1)
    return any(isinstance(event, StopRequested) and event.by == "user" for event in history[since + 1 :])


def _become_keeper(run: Run) -> dict[str, HostError]:
    """Ask for the keeper's place, for as long as agents of the old keeper may take to notice its end.

    Return who refuses it. A stop needs no place of a keeper: it is asked for once.
    """
    deadline = time.monotonic() + _HANDOVER
    while True:
        refused = keep(run)
        over = run.stop.asked or time.monotonic() > deadline
        if over or not any(error.kind == "kept" for error in refused.values()):
            return refused
        time.sleep(0.2)


def _tasks(states: Answers[Reply]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (task["attempt"], task["task"]): task["state"]
        for reply in states.good.values()
        for run in reply.result["runs"]
        for task in run["tasks"]
    }
