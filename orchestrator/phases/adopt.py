"""Taking over a run whose keeper is gone: from its folder, or from the nodes alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from orchestrator.events import Phase, RunAdopted, RunPlanned, TaskExited, TaskStarted
from orchestrator.fleet import Answers, Reply
from orchestrator.phases.connect import keep, open_sessions
from orchestrator.phases.context import PhaseFailed, Run, phase, report_failures
from orchestrator.phases.launch import VALIDATE
from orchestrator.store.reader import events_of

_HANDOVER = 5.0  # seconds in which the agents of a killed keeper notice that it is gone


@dataclass(frozen=True)
class Adopted:
    attempt: str
    exits: tuple[TaskExited, ...]


def announce(run: Run) -> None:
    """Say what the run is."""
    plan = run.plan
    tasks = tuple((str(spec.id), spec.host) for spec in plan.tasks)
    run.bus.emit(
        RunPlanned(run.id, plan.name, plan.owner, plan.command, tasks, plan.notes, str(run.folder.path))
    )


def adopt(run: Run) -> Adopted:
    """Find out how far the run had come; raise PhaseFailed when its tasks were never all started."""
    history = [stamped.event for stamped in events_of(run.folder)]
    if not any(isinstance(event, RunPlanned) for event in history):
        announce(run)
    run.bus.emit(RunAdopted(run.id, run.who))
    with phase(run, Phase.CONNECT):
        bad = open_sessions(run)
        report_failures(run.bus, Phase.CONNECT, bad)
        if not run.fleet.sessions:
            raise PhaseFailed(Phase.CONNECT, "no host of the run answers", "try again when they do")
        _become_keeper(run)
    states = run.fleet.ask("states", lambda _: {"run": run.id})
    found = _tasks(states)
    attempts = sorted({attempt for attempt, _ in found if attempt != VALIDATE}, key=int)
    attempt = attempts[-1] if attempts else "1"
    missing = [
        str(spec.id)
        for spec in run.plan.tasks
        if spec.host in states.good and (attempt, str(spec.id)) not in found
    ]
    if missing:
        raise PhaseFailed(
            Phase.LAUNCH,
            f"its keeper was gone before {missing[0]} was started",
            "launch it again",
        )
    known = {(event.attempt, event.task) for event in history if isinstance(event, TaskStarted)}
    for spec in run.plan.tasks:
        state = found.get((attempt, str(spec.id)))
        if (attempt, str(spec.id)) not in known:
            run.bus.emit(TaskStarted(str(spec.id), spec.host, attempt, (state or {}).get("pid") or 0))
    exits = tuple(e for e in history if isinstance(e, TaskExited) and e.attempt == attempt)
    return Adopted(attempt, exits)


def _become_keeper(run: Run) -> None:
    """Ask for the keeper's place, for as long as agents of the old keeper may take to notice its end."""
    deadline = time.monotonic() + _HANDOVER
    while True:
        try:
            keep(run)
        except PhaseFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _tasks(states: Answers[Reply]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (task["attempt"], task["task"]): task["state"]
        for reply in states.good.values()
        for run in reply.result["runs"]
        for task in run["tasks"]
    }
