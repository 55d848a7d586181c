"""Taking over a run whose keeper is gone: from its folder, or from the nodes alone."""

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.errors import Trouble
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
from orchestrator.value import Value


class Adopted(Value):
    attempt: int
    missing: str  # a task that was never started; "" if all were
    exits: tuple[TaskExited, ...]
    over: RunEnded | None  # its end, if it has ended: only remaining processes are to be ended
    apart: PeersReported | None = None  # its tasks train separately, as reported before


def announcement(folder: RunFolder, plan: RunPlan) -> RunPlanned:
    """Return the event that describes the run."""
    tasks = tuple((str(spec.id), spec.host) for spec in plan.tasks)
    return RunPlanned(plan.run, plan.name, plan.owner, plan.command, tasks, plan.notes, str(folder.path))


def adopt(run: Run) -> Adopted | RunLeft:
    """Determine how far the run had progressed.

    Raise `RunLeft` if it cannot be kept from here: no host responds, or another keeper is alive.
    """
    journal = list(events_of(run.folder))
    history = [stamped.event for stamped in journal]
    if not any(isinstance(event, RunPlanned) for event in history):
        run.emit(announcement(run.folder, run.plan))
    if not run.plan.tree:
        synced = (event.digest for event in history if isinstance(event, TreeSynced))
        run.plan = replace(run.plan, tree=next(synced, ""))
    endings = (number for number, event in enumerate(history) if isinstance(event, RunEnded))
    for stamped in journal[max(endings, default=-1) + 1 :]:
        if isinstance(stamped.event, StopRequested) and stamped.event.by is StopBy.USER:
            run.stop.ask(kill=False, at=stamped.at)  # the last keeper was killed while it stopped the run
            break
    with phase(run, Phase.CONNECT):
        # Replaced hosts may still run their old tasks, which nothing on them would end.
        bad = open_sessions(run, (*run.hosts, *run.plan.retired) if run.stop.requested else None)
        report_failures(run.emit, Phase.CONNECT, bad)
        refused = keep(run) if run.fleet.sessions else {}
        # The agents of the old keeper may take a moment to notice its end. A stop needs no keeper's role.
        deadline = run.clock.now() + run.timings.handover
        while (
            any(error.kind == Trouble.KEPT for error in refused.values())
            and not run.stop.requested
            and run.clock.now() <= deadline
        ):
            run.clock.sleep(0.2)
            refused = keep(run)
    if not run.fleet.sessions:
        why = "none of its hosts can be reached"
        return RunLeft(run.id, why, f"`orchestrate status {run.id}`, when they answer again")
    kept = next((error for error in refused.values() if error.kind == Trouble.KEPT), None)
    if kept is not None and not run.stop.requested:
        return RunLeft(run.id, f"{kept.why}, as {kept.host} reports", kept.hint)
    run.emit(RunAdopted(run.id, run.who))
    report_failures(run.emit, Phase.CONNECT, {n: e for n, e in refused.items() if e.kind != Trouble.KEPT})
    states = run.fleet.ask(wire.States(run=run.id))
    records: dict[tuple[str, str], wire.TaskRecord] = {}  # each from a host whose report on it counts
    for name, reply in states.good.items():
        for task in reply.tasks:
            if speaks_for(run.plan, name, task.attempt, task.task):
                records[task.attempt, task.task] = task.state
            else:
                log.warning("%s reports %r of attempt %r: ignored", name, task.task, task.attempt)
    # The last keeper may have planned an attempt without starting any task of it.
    attempts = {int(attempt) for attempt, _ in records if attempt.isdigit()}  # the others are validations
    attempt = str(max([*attempts, run.plan.attempt]))
    missing = [
        str(spec.id)
        for spec in run.plan.tasks
        if spec.host in states.good and (attempt, str(spec.id)) not in records
    ]
    over = next((event for event in reversed(history) if isinstance(event, RunEnded)), None)
    if missing and run.plan.untrusted and not run.stop.requested:
        # Whoever sent the plan could otherwise make us end running tasks.
        why = f"{missing[0]} was not started, and {run.plan.untrusted}"
        return RunLeft(run.id, why, f"`orchestrate stop {run.id}` ends what is left of the run")
    if missing:
        return Adopted(int(attempt), missing[0], (), over)
    started = {(event.attempt, event.task) for event in history if isinstance(event, TaskStarted)}
    for spec in run.plan.tasks:
        state = records.get((attempt, str(spec.id)))
        if (attempt, str(spec.id)) not in started:
            pid = state.started_as if state else 0
            run.emit(TaskStarted(str(spec.id), spec.host, attempt, pid))
    # Lost tasks are followed again: their host may have new information.
    ends = [e for e in history if isinstance(e, TaskExited) and e.attempt == attempt and not e.lost]
    exits = tuple({end.task: end for end in ends}.values())
    reports = [event for event in history if isinstance(event, (AttemptPlanned, PeersReported))]
    apart = reports[-1] if reports and isinstance(reports[-1], PeersReported) and reports[-1].apart else None
    return Adopted(int(attempt), "", exits, over, apart)
