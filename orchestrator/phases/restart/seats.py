"""Seats of hosts that cannot be reached: as a launch begins, and before a further attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from orchestrator import wire
from orchestrator.errors import HostError, Trouble
from orchestrator.events import AttemptPlanned, CheckReported, HostReplaced, Level, Noted, Phase
from orchestrator.fleet import host_name
from orchestrator.groups import grouped
from orchestrator.model import Host, Preparing, Role, RunPlan, TaskId, TaskSpec
from orchestrator.phases import connect, have
from orchestrator.phases.context import Run, fail_on, phase, report_failures
from orchestrator.phases.preflight import examine
from orchestrator.ranges import fold
from orchestrator.run import restarts
from orchestrator.run.restarts import Change, NoSeatError
from orchestrator.store.bus import Bus

# Nobody answers there. Whoever answers and refuses us (a login, a host key) is a mistake to be mended.
_AWAY = frozenset({Trouble.LOST, Trouble.NO_ROUTE, Trouble.REFUSED, Trouble.TIMEOUT})


def connect_or_replace(run: Run) -> None:
    """Reach every host, become the run's keeper there, lease its ports; raise PhaseFailed.

    With restarts, a host that is away has its place taken as if it had been lost later.
    """
    with phase(run, Phase.CONNECT):
        bad = connect.open_sessions(run)
        away = {name for name, error in bad.items() if error.kind in _AWAY}
        if not bad.keys() <= away or not run.plan.restarts.most:
            fail_on(run.bus, Phase.CONNECT, bad)
        elif away:
            _replace(run, bad)
        fail_on(run.bus, Phase.CONNECT, connect.keep(run))
        connect.lease(run)


def _replace(run: Run, away: dict[str, HostError]) -> None:
    """Begin without these hosts; raise PhaseFailed when that cannot be."""
    absent = {host.name: host for host in run.hosts if host.name in away}
    try:
        plan, changes = fill(run, lambda _: absent, run.plan.attempt)
    except NoSeatError:
        fail_on(run.bus, Phase.CONNECT, away)
        raise
    report_failures(run.bus, Phase.CONNECT, away)
    run.away |= away.keys()
    # Nothing of the run has ever been there: a spare like any other, should it answer one day.
    retired = tuple(host for host in plan.retired if host.name not in absent)
    spares = (*plan.spares, *(replace(host, spare=True) for host in absent.values()))
    take(run, replace(plan, retired=retired, spares=spares, preparing=Preparing()), changes)


def fill(
    run: Run, lost: Callable[[Collection[str]], Collection[str]], attempt: int
) -> tuple[RunPlan, tuple[Change, ...]]:
    """A plan without the lost hosts, with all that joined it connected; raise NoSeatError.

    `lost` is told each time which spares have turned out to be away.
    """
    absent: set[str] = set()  # in a later attempt they may be there
    while True:
        gone = lost(absent)
        plan, changes = restarts.reseat(run.plan, gone, candidates(run, absent), attempt)
        bad = _reach(run, [plan.host(change.by) for change in changes if change.by])
        report_failures(run.bus, Phase.CONNECT, bad)
        if not bad:
            return plan, changes
        absent |= bad.keys()
        run.away |= bad.keys()
        for name, found in bad.items():
            run.bus.emit(Noted(f"{name} cannot stand in for another host: {found.in_one_line}"))


def candidates(run: Run, absent: Collection[str]) -> list[Host]:
    """Return who may take a place."""
    found = restarts.candidates(run.plan, run.fleet.sessions)
    return [host for host in found if host.name not in absent]


def take(run: Run, plan: RunPlan, changes: Collection[Change]) -> None:
    """Make it the run's plan, and say so."""
    for change in changes:
        run.bus.emit(HostReplaced(change.host, change.by, "cannot be reached"))
    run.plan = plan
    run.folder.write_plan(plan)
    run.bus.emit(AttemptPlanned(str(plan.attempt), tuple((str(spec.id), spec.host) for spec in plan.tasks)))


def _reach(run: Run, hosts: list[Host]) -> dict[str, HostError]:
    """Connect to hosts that had no task; none of them is in the fleet if any cannot be used."""
    missing = [host for host in hosts if host.name not in run.fleet.sessions]
    if not missing:
        return {}
    bad = connect.open_sessions(run, missing)
    for name in bad:
        run.fleet.let_go(name)
    return bad


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
