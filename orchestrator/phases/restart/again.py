"""From hosts to the start of their tasks: the steps of a first attempt, and those of a later one.

A spare takes the place of a host that cannot be reached. Before another attempt it is proven that the
last one holds nothing: no process, no port.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from orchestrator import ranges, text, wire
from orchestrator.errors import ClusterError, HostError, Trouble
from orchestrator.events import AttemptPlanned, HostReplaced, Noted, Phase, StopBy
from orchestrator.fleet import Cancelled
from orchestrator.model import Host, Preparing, RunPlan
from orchestrator.phases import allocation, connect, data, preflight, stage, stop, validate
from orchestrator.phases.context import PhaseFailed, Run, fail_on, phase, report_failures
from orchestrator.phases.launch import launch
from orchestrator.phases.restart import recovery
from orchestrator.ranges import grouped
from orchestrator.run import restarts
from orchestrator.run.restarts import Change, NoSeatError, fits, unseat
from orchestrator.sync.backups import BackupOrigin, carry
from orchestrator.sync.files import LEFT_OUT, work_folder

_LOOK = 0.5  # seconds between two looks
_TURN, _MOMENT = 1.0, 0.1  # seconds between two looks in line; where somebody decides just now
_STUCK = 3.0  # seconds, after which that is no run of ours
_HOLDER = "a process there that holds the turn (`sudo ss -xap | grep orchestrate-turn` names it)"

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
            fail_on(run, Phase.CONNECT, bad)
        elif away:
            _replace(run, bad)
        fail_on(run, Phase.CONNECT, connect.keep(run))
        if run.plan.admission.wait:
            _wait_in_line(run)
        connect.lease(run)


def _wait_in_line(run: Run) -> None:
    """Wait for machines that are shared: first come, first served, and all hosts or none.

    Every place is taken before any machine is: of two runs that share hosts, the one that was launched later
    finds the other one's place on each of them. Raise PhaseFailed for a host that is lost in line.
    """
    told, clear = "", run.clock.now()
    _stand(run, go=False)
    while waits := {name: reply for name, reply in _stand(run, go=True).items() if not reply.granted}:
        _stand(run, go=False)  # all or none
        behind = grouped((_words(reply.ahead[0]), name) for name, reply in waits.items() if reply.ahead)
        undecided = [name for name, reply in waits.items() if not reply.ahead]
        clear = clear if undecided else run.clock.now()
        if run.clock.now() - clear > _STUCK:
            behind[_HOLDER] = undecided
        words = "; ".join(f"{ranges.fold(hosts)} for {who}" for who, hosts in behind.items())
        if words and words != told:
            run.emit(Noted(f"in line: waits on {words}"))
            told = words
        if run.clock.flagged(run.stop, _TURN if behind else _MOMENT):
            raise Cancelled


def _stand(run: Run, *, go: bool) -> dict[str, wire.InLine]:
    """Ask all hosts, again where one was lost and is back."""
    since, owner = round(run.plan.created, 3), run.plan.owner
    places = {
        host.name: wire.StandInLine(
            run=run.id, owner=owner, machine=connect.machine(host), since=since, go=go
        )
        for host in run.hosts
    }
    while (answers := run.fleet.ask(places)).bad:
        recovery.gather(run, run.timings.host_return)
        if run.stop.asked:
            raise Cancelled
        others = {name: error for name, error in answers.bad.items() if not error.lost}
        fail_on(run, Phase.CONNECT, recovery.losses(run) or others)
    return answers.good


def _words(place: wire.Ahead) -> str:
    when = time.strftime("%a %H:%M", time.localtime(place.since))
    return f"run {place.run} of {place.owner} (since {when})"


def _replace(run: Run, away: dict[str, HostError]) -> None:
    """Begin without these hosts; raise PhaseFailed when that cannot be."""
    absent = {host.name: host for host in run.hosts if host.name in away}
    try:
        plan, changes = fill(run, lambda _: absent, run.plan.attempt)
    except NoSeatError:
        fail_on(run, Phase.CONNECT, away)
        raise
    report_failures(run.emit, Phase.CONNECT, away)
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
        joining = [change.by for change in changes if change.by and change.by not in run.fleet.sessions]
        bad = connect.open_sessions(run, list(map(plan.host, joining))) if joining else {}
        for name in bad:  # none of them is in the fleet if any cannot be used
            run.fleet.let_go(name)
        report_failures(run.emit, Phase.CONNECT, bad)
        if not bad:
            return plan, changes
        absent |= bad.keys()
        for name, found in bad.items():
            run.emit(Noted(f"{name} cannot stand in for another host: {found.in_one_line}"))


def candidates(run: Run, absent: Collection[str]) -> list[Host]:
    """Return who may take a place."""
    found = restarts.candidates(run.plan, run.fleet.sessions)
    return [host for host in found if host.name not in absent]


def take(run: Run, plan: RunPlan, changes: Collection[Change]) -> None:
    """Make it the run's plan, and say so."""
    for change in changes:
        run.emit(HostReplaced(change.host, change.by, "cannot be reached"))
    if changes and run.started:
        names = ", ".join(change.host for change in changes)
        ports = ranges.fold(map(str, sorted({spec.port for spec in plan.tasks})))
        run.emit(Noted(f"{names} may still run old tasks: the new ones listen on port {ports}"))
    run.plan = plan
    run.folder.write_plan(plan)
    run.emit(AttemptPlanned(str(plan.attempt), tuple((str(spec.id), spec.host) for spec in plan.tasks)))


class CannotSeatError(PhaseFailed):
    """Too few hosts are left, and waiting has not helped: no further attempt can do better."""


class KeptElsewhereError(PhaseFailed):
    """Another keeper took the run over while we could not reach its hosts: it ends the tasks, not we."""


def rest(run: Run, seconds: float) -> None:
    """The pause between two attempts, in which lost hosts may come back; raise Cancelled."""
    deadline = run.clock.now() + seconds
    while (left := deadline - run.clock.now()) > 0:
        if run.stop.asked:
            raise Cancelled
        if run.lost:
            recovery.gather(run, min(_LOOK, left))
        else:
            run.clock.flagged(run.stop, min(_LOOK, left))


def start_again(run: Run, attempt: int) -> None:
    """Have all hosts at hand, prove that nothing of the last attempt is left there, start all tasks.

    Raise PhaseFailed; Cancelled when a user asks for the end.
    """
    while True:
        if run.stop.asked:
            raise Cancelled
        try:
            plan, changes = fill(run, lambda absent: _still_lost(run, absent), attempt)
        except NoSeatError as error:
            raise CannotSeatError(
                Phase.CONNECT, str(error), "mark hosts as `spare = true`, or allow fewer with --min-hosts"
            ) from None
        take(run, plan, changes)
        joined = restarts.joined(run.plan)
        try:
            _prepare(run, joined)
        except PhaseFailed as failed:
            if run.stop.asked:
                raise
            unfit = {name: why for name, why in failed.hosts.items() if name in joined}
            if not unfit:
                raise
            for name, why in unfit.items():
                what = f"{name} cannot stand in for another host ({failed.phase}: {why}); it is left out"
                run.emit(Noted(what))
            run.plan = unseat(run.plan, unfit)
            run.folder.write_plan(run.plan)
        else:
            break
    run.staged.made.clear()
    run.plan = replace(run.plan, preparing=Preparing())
    run.folder.write_plan(run.plan)
    launch(run, str(attempt))


def _prepare(run: Run, joined: list[str]) -> None:
    """Bring every host to where its tasks can be started; raise PhaseFailed."""
    with phase(run, Phase.CONNECT):
        refused = connect.keep(run)
        for error in refused.values():
            if error.kind == Trouble.KEPT:
                raise KeptElsewhereError(Phase.CONNECT, f"{error.why}, as {error.host} says", error.hint)
        fail_on(run, Phase.CONNECT, refused)
        connect.lease(run)
        prove_free(run)
        # What was lost over the proof, or before, was not asked: nothing is proven there.
        fail_on(run, Phase.CONNECT, recovery.losses(run))
    prepare(run, joined)


def _still_lost(run: Run, absent: Collection[str]) -> set[str]:
    """Wait for lost hosts: not long where others can stand in, else as long as the user allows.

    A host that was found unfit is none to wait for.
    """
    recovery.gather(run, 0.0)  # in a pause without lost hosts nobody looks which sessions have ended
    policy = run.plan.restarts
    unfit = {host.name for host in run.hosts} & set(run.plan.unfit)
    while lost := set(run.lost):
        if run.stop.asked:
            raise Cancelled
        helped = policy.min_hosts is not None or any(
            fits(spare, run.plan.host(name)) for spare in candidates(run, absent) for name in lost
        )
        patience = min(run.timings.host_return, policy.host_timeout) if helped else policy.host_timeout
        gone = allocation.taken(run)
        if all(name in gone or run.clock.now() - run.losses.since[name] > patience for name in lost):
            return lost | unfit
        recovery.gather(run, _LOOK)
    return unfit


def prove_free(run: Run) -> None:
    """Raise PhaseFailed naming what still runs, or holds a port; Cancelled when a user asks for the end.

    A host that was lost when the last attempt was ended may still run its tasks.
    """
    stop.end_all(run, kill=True, grace=0.0, by=StopBy.FAILURE)
    stop.sweep(run)
    deadline = run.clock.now() + run.timings.release
    while busy := _busy(run):
        if run.clock.now() > deadline:
            fail_on(run, Phase.CONNECT, busy)
        if run.clock.flagged(run.stop, _LOOK):
            raise Cancelled


def _busy(run: Run) -> dict[str, HostError]:
    """Return what is held on which host, and by whom."""
    nonce = secrets.token_hex(8)
    questions = {
        name: wire.Listen(
            run=run.id, ports=[spec.port for spec in run.plan.tasks_on(name)], nonce=nonce, host=name
        )
        for name in run.names
    }
    ports = run.fleet.ask(questions)
    run.fleet.ask(wire.Unlisten(), hosts=run.names)
    swept = run.fleet.ask(wire.Sweep(run=run.id), hosts=run.names, timeout=30.0)
    fail_on(run, Phase.CONNECT, {**ports.bad, **swept.bad})
    busy: dict[str, HostError] = {}
    for name, reply in ports.good.items():
        if reply.busy:
            busy[name] = HostError(
                name,
                f"has task port {reply.busy[0].port} taken",
                kind="port",
                why=f"{reply.busy[0].words} has it, and nothing of this run is left there",
                hint="end it, then launch again",
            )
    for name, left in swept.good.items():
        if left.alive:
            busy[name] = HostError(
                name,
                f"still runs {', '.join(left.alive)} of the last attempt",
                kind="orphan",
                why="SIGKILL has not ended it: it waits in the kernel, for a disk or a driver",
                hint=f"`ps -eo pid,stat,wchan:30,args` on {name}; what is in state D needs a reboot",
            )
    return busy


def prepare(run: Run, joined: Sequence[str] | None = None) -> None:
    """Bring the hosts to where their tasks can be started; raise PhaseFailed.

    `joined` are the hosts that the attempt before did not have. None: this is the first attempt, all are new.
    """
    first, admission = joined is None, run.plan.admission
    are_new = first or bool(joined)
    if run.plan.environment is not None:
        from orchestrator.phases import setup  # noqa: PLC0415 - packaging takes 50 ms of every launch

        setup.setup(run, None if joined is None else [run.plan.host(name) for name in joined])
    # Nodes say what they are while they are examined, and get their code; with [data], once that is there.
    validates = are_new and admission.validate
    validation = validate.begin(run, joined) if validates and run.plan.data is None else None
    shared: Mapping[str, str] = {}
    if are_new and admission.preflight:
        shared = preflight.preflight(run)
        if not first:
            run.staged.shared = shared_now(run, shared)
    have_data = run.placed.env.keys() == {host.name for host in run.hosts}
    data.place(run, joined if have_data else None)
    if validates and validation is None:
        validation = validate.begin(run, joined)
    if joined is None:
        stage.stage(run, shared)
    else:
        stage.stage_again(run, joined)
    run.started = True
    if validation is not None:
        validation()
    if not first and run.plan.restarts.backup is not None:
        carry_backup(run, run.plan.preparing.leader, run.plan.restarts.backup)


def carry_backup(run: Run, leader: str, backup: str) -> None:
    """Bring the backup of the task that led the last attempt to every host; raise PhaseFailed."""
    works = {
        host.name: work_folder(host.workdir, run.id, run.plan.cwd)
        for host in (run.plan.host(leader), *run.hosts)
    }
    source, going_on = leader, [host.name for host in run.hosts]
    if backup.startswith(("/", "~")):
        # Who sees the same workdir need not see the same folder elsewhere, as a disk of each machine's own.
        # Where they do, each finds that it has the same already.
        paths, shared = dict.fromkeys(works, backup), {}
    else:
        paths, shared = {name: f"{work}/{backup}" for name, work in works.items()}, run.staged.shared
        if _emptied(run, leader):
            source = ""
    try:
        carried = carry(
            run.fleet.sessions, source, paths, run.folder.path / "backup", shared, going_on=going_on
        )
    except ClusterError as error:
        raise PhaseFailed(Phase.STAGE, error.in_one_line, error.hint) from error
    fail_on(run, Phase.STAGE, dict(carried.failed))
    if reached := [name for name, sent in carried.sent.items() if not sent.reused]:
        size = text.size(max(carried.sent[name].bytes for name in reached))
        giver = carried.giver or "this machine"
        run.emit(Noted(f"{backup} ({size}) was copied from {giver} to {ranges.fold(reached)}"))
    if carried.left_out:
        left = text.plain(carried.left_out[0])[:200]
        run.emit(Noted(f"of {backup} stayed on {carried.giver} ({LEFT_OUT}): {left}, for one"))
    match carried.origin:
        case BackupOrigin.COPY:
            said = f"the newest {backup} is lost with {leader}; every host has that of an attempt before"
        case BackupOrigin.REMOVED:
            said = f"{leader} has removed its {backup}: training starts from the beginning, everywhere"
        case BackupOrigin.NOWHERE:
            said = f"no {backup} of {leader} can be had: training starts from the beginning"
        case BackupOrigin.HOST:
            return
    run.emit(Noted(said))


def _emptied(run: Run, leader: str) -> bool:
    """Return True if a host that continues got a new working folder: its disk forgot the last one."""
    shared = run.staged.shared
    group = shared.get(leader, leader)
    return leader in run.names and any(shared.get(name, name) == group for name in run.staged.made)


def shared_now(run: Run, now: Mapping[str, str]) -> dict[str, str]:
    """Return who sees whose disk by a new look at the hosts, and by the last one of those that are gone."""
    known = dict(now)
    for name, group in run.staged.shared.items():
        if name not in run.names:
            mate = next((other for other in run.names if run.staged.shared.get(other) == group), None)
            if mate is not None:
                known[name] = now.get(mate, mate)
    return known
