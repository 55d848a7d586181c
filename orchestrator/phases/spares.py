"""Spares at launch: looked at as hosts that have tasks are, so that it is said now who could not serve."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import CheckReported, Level, Noted
from orchestrator.fleet import host_name
from orchestrator.groups import grouped
from orchestrator.model import Host, Role, RunPlan, TaskId, TaskSpec
from orchestrator.phases import have
from orchestrator.phases.context import Run
from orchestrator.phases.preflight import examine
from orchestrator.ranges import fold
from orchestrator.store.bus import Bus

_CONNECT = 8.0  # seconds; a launch does not wait longer for a host that it does not need yet
# By [env], when it stands in.
_MADE_LATER = {"python", "tensorflow", "tf_keras", "keras", "numpy", "import"}


def examine_spares(run: Run) -> None:
    """Emit a note for each spare that could not stand in for a host; nothing here ends a launch.

    Only where restarts are asked for: without them a spare is never needed. Not of a host that was away as
    its tasks were to be started: that was told.
    """
    told = run.fleet.sessions.keys() | run.away
    spares = [host for host in run.plan.spares if host.name not in told]
    if not spares or not run.plan.restarts.most:
        return

    def connect(host: Host) -> None:
        run.fleet.sessions[host.name] = run.fleet.open(host, _CONNECT)

    bad: dict[str, HostError] = dict(run.fleet.each(spares, host_name, connect).bad)
    there = [host for host in spares if host.name in run.fleet.sessions]
    try:
        plan = with_spares(run.plan, there)
        found = examine(run.fleet, Bus(), plan) if there else None
        bad.update(_lacking(run, plan, there))
    finally:
        for host in there:
            run.fleet.let_go(host.name)
    if found is not None:
        bad.update({name: error for name, error in found.failed.items() if name in {h.name for h in there}})
    said = {name: error.in_one_line for name, error in bad.items()}
    if found is not None:
        made_later = run.plan.environment is not None
        said.update(unfit(found.checks, {host.name for host in there}, made_later=made_later))
    for text, names in grouped((text, name) for name, text in said.items()).items():
        which = f"spare {names[0]}" if len(names) == 1 else f"spares {fold(names)}"
        run.bus.emit(Noted(f"{which} cannot stand in for another host: {text}"))


def _lacking(run: Run, plan: RunPlan, spares: Sequence[Host]) -> dict[str, HostError]:
    """The spares without the job's program; one whose environment is made later has not got it yet."""
    needs = {} if plan.environment is not None else have.needs(plan)
    asked = {host.name: needs[host.name] for host in spares if host.name in needs}
    if not asked:
        return {}
    answers = run.fleet.ask(
        lambda session: wire.WorkMake(
            workdir=session.host.workdir,
            run=run.id,
            digests=[],
            also=[],
            needs=asked[session.host.name],
            makes=False,
        ),
        hosts=asked,
        timeout=have.SECONDS,
    )
    had = {name: reply.had for name, reply in answers.good.items() if reply.had is not None}
    return {**answers.bad, **have.lacking(run, plan, had)}


def with_spares(plan: RunPlan, spares: Sequence[Host]) -> RunPlan:
    """The plan with a task on each spare, to be looked at and never to be started."""
    first = plan.tasks[0]
    above = max(spec.id.index for spec in plan.tasks) + 1
    tasks = [
        TaskSpec(
            TaskId(Role.WORKER, above + number), host.name, host.task_port, first.argv, first.env, first.setup
        )
        for number, host in enumerate(spares)
    ]
    hosts = (*plan.hosts, *(replace(host, spare=False) for host in spares))
    return replace(plan, hosts=hosts, tasks=(*plan.tasks, *tasks))


def unfit(checks: Sequence[CheckReported], spares: Collection[str], *, made_later: bool) -> dict[str, str]:
    """Why which spare could not serve: the first thing that is wrong with it."""
    found: dict[str, str] = {}
    for check in checks:
        if (
            check.host in spares
            and check.level is Level.FAIL
            and not (made_later and check.check in _MADE_LATER)
        ):
            found.setdefault(check.host, f"{check.check}: {check.found}")
    return found
