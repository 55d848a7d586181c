"""Taking over a run whose keeper is gone: from its folder, or from the nodes alone."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.errors import HostError, Trouble
from orchestrator.events import (
    AttemptPlanned,
    PeersReported,
    Phase,
    RunAdopted,
    RunEnded,
    RunLeft,
    RunPlanned,
    StopBy,
    StopRequested,
    TaskExited,
    TaskStarted,
    TreeSynced,
)
from orchestrator.model import RunPlan
from orchestrator.phases.connect import keep, open_sessions
from orchestrator.phases.context import Run, log, phase, report_failures
from orchestrator.planning.takeover import speaks_for
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of

_HANDOVER = 5.0  # seconds in which the agents of a killed keeper notice that it is gone


class Adopted(Struct, frozen=True):
    attempt: int
    missing: str  # a task that was never started; "" when all were
    exits: tuple[TaskExited, ...]
    over: RunEnded | None  # it has ended before: only its remains are to be ended
    apart: PeersReported | None = None  # its tasks train each for itself, as was reported


def announcement(folder: RunFolder, plan: RunPlan) -> RunPlanned:
    """Say what the run is."""
    tasks = tuple((str(spec.id), spec.host) for spec in plan.tasks)
    return RunPlanned(plan.run, plan.name, plan.owner, plan.command, tasks, plan.notes, str(folder.path))


def adopt(run: Run) -> Adopted | RunLeft:
    """Find out how far the run had come.

    `RunLeft` when it cannot be kept from here: no host answers, or another keeper lives.
    """
    history = [stamped.event for stamped in events_of(run.folder)]
    if not any(isinstance(event, RunPlanned) for event in history):
        run.emit(announcement(run.folder, run.plan))
    if not run.plan.tree:
        synced = (event.digest for event in history if isinstance(event, TreeSynced))
        run.plan = replace(run.plan, tree=next(synced, ""))
    told = (number for number, event in enumerate(history) if isinstance(event, RunEnded))
    since = history[max(told, default=-1) + 1 :]
    if any(isinstance(event, StopRequested) and event.by is StopBy.USER for event in since):
        run.stop.ask(kill=False)  # the last keeper was killed while it ended the run for a user
    with phase(run, Phase.CONNECT):
        # Hosts that were replaced may still run what they had: nobody else ends it there.
        bad = open_sessions(run, (*run.hosts, *run.plan.retired) if run.stop.asked else None)
        report_failures(run.emit, Phase.CONNECT, bad)
        refused = _become_keeper(run) if run.fleet.sessions else {}
    if not run.fleet.sessions:
        why = "none of its hosts can be reached"
        return RunLeft(run.id, why, f"orchestrate status {run.id}, when they answer again")
    kept = next((error for error in refused.values() if error.kind == Trouble.KEPT), None)
    if kept is not None and not run.stop.asked:
        return RunLeft(run.id, f"{kept.why}, as {kept.host} says", kept.hint)
    run.emit(RunAdopted(run.id, run.who))
    report_failures(run.emit, Phase.CONNECT, {n: e for n, e in refused.items() if e.kind != Trouble.KEPT})
    states = run.fleet.ask(wire.States(run=run.id))
    found: dict[tuple[str, str], wire.TaskRecord] = {}  # each by a host whose word on it counts
    for name, reply in states.good.items():
        for task in reply.tasks:
            if speaks_for(run.plan, name, task.attempt, task.task):
                found[task.attempt, task.task] = task.state
            else:
                log.warning("%s tells of %r in attempt %r: ignored", name, task.task, task.attempt)
    # The last keeper may have planned an attempt of which nothing was started.
    attempts = {int(attempt) for attempt, _ in found if attempt.isdigit()}  # the others are validations
    attempt = str(max([*attempts, run.plan.attempt]))
    missing = [
        str(spec.id)
        for spec in run.plan.tasks
        if spec.host in states.good and (attempt, str(spec.id)) not in found
    ]
    over = next((event for event in reversed(history) if isinstance(event, RunEnded)), None)
    if missing and run.plan.hearsay and not run.stop.asked:
        # To end what does run would be to act on the word of whoever told of the plan.
        why = f"{missing[0]} was not started, and {run.plan.hearsay}"
        return RunLeft(run.id, why, f"`orchestrate stop {run.id}` ends what is left of it")
    if missing:
        return Adopted(int(attempt), missing[0], (), over)
    known = {(event.attempt, event.task) for event in history if isinstance(event, TaskStarted)}
    for spec in run.plan.tasks:
        state = found.get((attempt, str(spec.id)))
        if (attempt, str(spec.id)) not in known:
            pid = state.started_as if state else 0
            run.emit(TaskStarted(str(spec.id), spec.host, attempt, pid))
    # What was given up as lost is asked for again: its host may know better now.
    ends = [e for e in history if isinstance(e, TaskExited) and e.attempt == attempt and not e.lost]
    exits = tuple({end.task: end for end in ends}.values())
    told_of = [event for event in history if isinstance(event, (AttemptPlanned, PeersReported))]
    apart = told_of[-1] if told_of and isinstance(told_of[-1], PeersReported) and told_of[-1].apart else None
    return Adopted(int(attempt), "", exits, over, apart)


def _become_keeper(run: Run) -> dict[str, HostError]:
    """Ask for the keeper's place, for as long as agents of the old keeper may take to notice its end.

    Return who refuses it. A stop needs no place of a keeper: it is asked for once.
    """
    deadline = run.clock.now() + _HANDOVER
    while True:
        refused = keep(run)
        over = run.stop.asked or run.clock.now() > deadline
        if over or not any(error.kind == Trouble.KEPT for error in refused.values()):
            return refused
        run.clock.sleep(0.2)
