"""Seats of hosts that cannot be reached: as a launch begins, and before a further attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from orchestrator.errors import HostError, Trouble
from orchestrator.events import AttemptPlanned, HostReplaced, Noted, Phase
from orchestrator.model import Host, Preparing, RunPlan
from orchestrator.phases import connect
from orchestrator.phases.context import Run, fail_on, phase, report_failures
from orchestrator.ranges import fold
from orchestrator.run import restarts
from orchestrator.run.restarts import Change, NoSeatError

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
        plan, changes = restarts.reseat(run.plan, gone, candidates(run, absent), attempt, started=run.started)
        bad = _reach(run, [plan.host(change.by) for change in changes if change.by])
        report_failures(run.bus, Phase.CONNECT, bad)
        if not bad:
            return plan, changes
        absent |= bad.keys()
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
    if changes and run.started:
        names = ", ".join(change.host for change in changes)
        ports = fold(map(str, sorted({spec.port for spec in plan.tasks})))
        run.bus.emit(Noted(f"{names} may still run old tasks: the new ones listen on port {ports}"))
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
