"""Preparing hosts for the start of their tasks, in a first attempt and in later ones.

A spare takes the place of a host that cannot be reached. Before another attempt it is verified that nothing
of the last one remains: no process, no port.
"""

import dataclasses
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from orchestrator import ranges, wire
from orchestrator.errors import HostError, HostErrors, Trouble
from orchestrator.events import AttemptPlanned, HostReplaced, Noted, Phase, StopBy
from orchestrator.fleet import Cancelled
from orchestrator.model import Preparing, RunPlan
from orchestrator.phases import connect, data, preflight, recovery, stage, stop, validate
from orchestrator.phases.context import PhaseFailed, Run, fail_on, failure, phase, report_failures
from orchestrator.phases.launch import begin_ahead, launch
from orchestrator.phases.resume import carry_backup, note_lone_checkpoint
from orchestrator.run import restarts
from orchestrator.run.restarts import Change, TooFewHostsError, fits, undo_replacements

_LOOK = 0.5  # seconds between two checks
_TURN, _MOMENT = 1.0, 0.1  # seconds between two checks in the queue; the same while another run decides
_STUCK = 3.0  # seconds for a run to decide; a process that takes longer is none of ours
_HOLDER = "a process that blocks the queue (`sudo ss -xap | grep orchestrate-turn` names it)"
# Nobody answers there. A host that answers and refuses (a login, a host key) is a mistake to be fixed.
_AWAY = frozenset({Trouble.LOST, Trouble.NO_ROUTE, Trouble.REFUSED, Trouble.TIMEOUT})


def connect_or_replace(run: Run) -> None:
    """Reach every host, become the run's keeper there, lease its ports; raise PhaseFailed.

    With restarts, a host that is away is replaced as if it had been lost later.
    """
    with phase(run, Phase.CONNECT):
        bad = connect.open_sessions(run, new=True)
        if bad:
            _begin_without(run, bad)
        fail_on(run, Phase.CONNECT, connect.keep_new(run))
        _lease(run)


def _begin_without(run: Run, bad: Mapping[str, HostError]) -> None:
    """Have spares replace hosts that are away; raise PhaseFailed if that is not possible."""
    absent = {host.name: host for host in run.hosts if host.name in bad}
    replaceable = run.plan.restarts.most and all(error.kind in _AWAY for error in bad.values())
    try:
        plan, changes = fill(run, lambda _: absent, run.plan.attempt) if replaceable else (None, ())
    except TooFewHostsError:
        plan = None
    report_failures(run.emit, Phase.CONNECT, bad)
    if plan is None:  # at once, not after host_timeout: the user may still be watching
        raise dataclasses.replace(failure(Phase.CONNECT, list(bad.values())), outside=False)
    # Nothing of the run was ever there: if it answers later, each is a spare like any other.
    retired = tuple(host for host in plan.retired if host.name not in absent)
    spares = (*plan.spares, *(replace(host, spare=True) for host in absent.values()))
    take(run, replace(plan, retired=retired, spares=spares, preparing=Preparing()), changes)


def _lease(run: Run) -> None:
    """Reserve the machines, before the first tasks start also in the queue; raise PhaseFailed."""
    if run.plan.admission.wait and not run.prepared:
        _wait_in_queue(run)
    connect.lease(run)


def _wait_in_queue(run: Run) -> None:
    """Wait for shared machines: first come, first served, and all hosts or none.

    The run enters all queues before it takes any machine: of two runs that share hosts, the later one finds
    the other's place on each of them. Raise PhaseFailed for a host that is lost while waiting.
    """
    last, clear = "", run.clock.now()
    _queue_up(run, go=False)
    while waits := {name: reply for name, reply in _queue_up(run, go=True).items() if not reply.granted}:
        _queue_up(run, go=False)  # all or none
        behind: dict[str, list[str]] = {}
        for name, reply in waits.items():
            for ahead in reply.ahead[:1]:
                since = time.strftime("%a %H:%M", time.localtime(ahead.since))
                behind.setdefault(f"run {ahead.run} of {ahead.owner} (since {since})", []).append(name)
        undecided = [name for name, reply in waits.items() if not reply.ahead]
        clear = clear if undecided else run.clock.now()
        if run.clock.now() - clear > _STUCK:
            behind[_HOLDER] = undecided
        note = "; ".join(f"{who}, on {ranges.fold(hosts)}" for who, hosts in behind.items())
        if note and note != last:
            run.emit(Noted(f"in the queue behind {note}"))
            last = note
        if run.clock.flagged(run.stop, _TURN if behind else _MOMENT):
            raise Cancelled


def _queue_up(run: Run, *, go: bool) -> dict[str, wire.InQueue]:
    """Enter every host's queue, or with `go` leave it for the machine; repeat it after a host was lost."""
    since, owner = run.plan.created, run.plan.owner
    places = {
        host.name: wire.JoinQueue(run=run.id, owner=owner, machine=connect.machine(host), since=since, go=go)
        for host in run.hosts
    }
    while (answers := run.fleet.ask(places)).bad:
        recovery.wait_for_lost(run, run.timings.host_return)
        if run.stop.requested:
            raise Cancelled
        others = {name: error for name, error in answers.bad.items() if not error.lost}
        fail_on(run, Phase.CONNECT, recovery.losses(run) or others)
    return answers.good


def fill(
    run: Run, lost: Callable[[Collection[str]], Collection[str]], attempt: int
) -> tuple[RunPlan, tuple[Change, ...]]:
    """Return a plan without the lost hosts, with all new ones connected; raise TooFewHostsError.

    `lost` is called with the spares that turned out to be away.
    """
    absent: set[str] = set()  # spares that are away; in a later attempt they may be back
    while True:
        gone = lost(absent)
        candidates = restarts.candidates(run.plan, run.fleet.sessions, absent)
        plan, changes = restarts.replace_lost(run.plan, gone, candidates, attempt, started=run.started)
        joining = [change.by for change in changes if change.by and change.by not in run.fleet.sessions]
        for name in joining:  # no longer retried
            run.since_lost.pop(name, None)
        bad = connect.open_sessions(run, list(map(plan.host, joining))) if joining else {}
        for name in bad:  # if any of them is unusable, none stays in the fleet
            run.fleet.let_go(name)
        report_failures(run.emit, Phase.CONNECT, bad)
        if not bad:
            return plan, changes
        absent |= bad.keys()
        for name, error in bad.items():
            run.emit(Noted(f"{name} cannot replace another host: {error.in_one_line}"))


def take(run: Run, plan: RunPlan, changes: Collection[Change]) -> None:
    """Make `plan` the run's plan, and report its changes."""
    for change in changes:
        run.emit(HostReplaced(change.host, change.by, "cannot be reached"))
    if changes and run.started:
        names = ", ".join(change.host for change in changes)
        ports = ranges.fold(map(str, sorted({spec.port for spec in plan.tasks})))
        run.emit(Noted(f"{names} may still run old tasks: the new ones listen on port {ports}"))
    run.replan(plan)
    run.emit(AttemptPlanned(str(plan.attempt), tuple((str(spec.id), spec.host) for spec in plan.tasks)))


class CannotContinueError(PhaseFailed):
    """Too few hosts are left, even after a wait: no further attempt can do better."""


class KeptElsewhereError(PhaseFailed):
    """Another keeper took the run over while its hosts were unreachable, and owns the tasks now."""


def start_again(run: Run, attempt: int) -> None:
    """Reach all hosts, verify that nothing of the last attempt remains there, start all tasks.

    Raise PhaseFailed; Cancelled when a user requests the end.
    """
    while True:
        if run.stop.requested:
            raise Cancelled
        try:
            plan, changes = fill(run, lambda absent: _still_lost(run, absent), attempt)
        except TooFewHostsError as error:
            raise CannotContinueError(
                Phase.CONNECT, str(error), "set `spare = true` for hosts, or allow fewer with --min-hosts"
            ) from None
        take(run, plan, changes)
        joined = restarts.joined(run.plan)
        try:
            _prepare(run, joined)
        except PhaseFailed as failed:
            if run.stop.requested:
                raise
            unfit = {name: why for name, why in failed.hosts.items() if name in joined}
            if not unfit:
                raise
            for name, why in unfit.items():
                what = f"{name} cannot replace another host ({failed.phase}: {why}); it is skipped"
                run.emit(Noted(what))
            run.replan(undo_replacements(run.plan, unfit))
        else:
            break
    run.staged.made.clear()
    run.replan(replace(run.plan, preparing=Preparing()))
    launch(run, str(attempt))


def _prepare(run: Run, joined: list[str]) -> None:
    """Prepare every host for its tasks; raise PhaseFailed."""
    with phase(run, Phase.CONNECT):
        refused = connect.keep(run)
        for error in refused.values():
            if error.kind == Trouble.KEPT:
                raise KeptElsewhereError(Phase.CONNECT, f"{error.why}, as {error.host} reports", error.hint)
            if error.kind == Trouble.STATE:
                recovery.lose(run, error.host, recovery.reason(error))
        fail_on(run, Phase.CONNECT, refused)
        _lease(run)
        prove_free(run)
        # On hosts lost before or during the verification, nothing is verified.
        fail_on(run, Phase.CONNECT, recovery.losses(run))
    prepare(run, joined if run.prepared else None)


def _still_lost(run: Run, absent: Collection[str]) -> set[str]:
    """Wait for lost hosts: briefly if others can replace them, otherwise as long as the user allows.

    A host that turned out to be unfit is not waited for.
    """
    recovery.wait_for_lost(run, 0.0)  # nothing has checked the sessions during the pause
    policy = run.plan.restarts
    unfit = {host.name for host in run.hosts} & set(run.plan.unfit)
    while lost := set(run.lost):
        if run.stop.requested:
            raise Cancelled
        helped = policy.min_hosts is not None or any(
            fits(spare, run.plan.host(name))
            for spare in restarts.candidates(run.plan, run.fleet.sessions, absent)
            for name in lost
        )
        patience = min(run.timings.host_return, policy.host_timeout) if helped else policy.host_timeout
        gone = run.taken()
        if all(name in gone or run.clock.now() - run.since_lost[name] > patience for name in lost):
            return lost | unfit
        recovery.wait_for_lost(run, _LOOK)
    return unfit


def prove_free(run: Run) -> None:
    """Raise PhaseFailed if anything still runs or holds a port; Cancelled when a user requests the end.

    A host that was lost when the last attempt ended may still run its tasks.
    """
    stop.end_all(run, kill=True, grace=0.0, by=StopBy.FAILURE)
    stop.sweep(run)
    deadline = run.clock.now() + run.timings.release
    while busy := _busy(run):
        if run.clock.now() > deadline:
            fail_on(run, Phase.CONNECT, busy)
        if run.clock.flagged(run.stop, _LOOK):
            raise Cancelled


def _busy(run: Run) -> HostErrors:
    """Return the errors of hosts whose task ports are taken, or where old tasks are alive."""
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
    fail_on(run, Phase.CONNECT, ports.bad | swept.bad)
    return {
        name: HostError(
            name,
            f"already uses task port {reply.busy[0].port}",
            kind="port",
            why=f"it belongs to {reply.busy[0].words}, not to this run",
            hint="end that process, then launch again",
        )
        for name, reply in ports.good.items()
        if reply.busy
    } | {
        name: HostError(
            name,
            f"has live tasks of the last attempt: {', '.join(remaining.alive)}",
            kind="orphan",
            why="SIGKILL has not ended them: they wait in the kernel for a disk or a driver",
            hint=f"`ps -eo pid,stat,wchan:30,args` on {name}; if one is in state D, reboot",
        )
        for name, remaining in swept.good.items()
        if remaining.alive
    }


def prepare(run: Run, joined: Sequence[str] | None = None) -> None:
    """Prepare the hosts for their tasks; raise PhaseFailed.

    `joined` are the hosts that the previous attempt did not have. None: all are new.
    """
    first, admission = joined is None, run.plan.admission
    are_new = first or bool(joined)
    if first:  # nothing has trained: only a continued run has a backup
        run.plan = replace(run.plan, preparing=replace(run.plan.preparing, leader=""))
    if run.plan.environment is not None:
        from orchestrator.phases import setup  # noqa: PLC0415 - packaging takes 50 ms of every launch

        setup.setup(run, None if joined is None else [run.plan.host(name) for name in joined])
    begin_ahead(run, joined)
    # Nodes report their state while they are examined and receive code; with [data], once that has arrived.
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
        if emptied := run.staged.made.intersection(run.names).difference(joined):
            note = f"the run's folder is gone from {ranges.fold(emptied)}, with all that tasks wrote there"
            run.emit(Noted(note))
    run.started = True
    if validation is not None:
        validation()
    if run.plan.preparing.leader and run.plan.restarts.backup is not None:
        carry_backup(run, run.plan.preparing.leader, run.plan.restarts.backup)
    elif run.plan.preparing.leader:
        note_lone_checkpoint(run, run.plan.preparing.leader, joined or ())
    if first:
        run.plan = replace(run.plan, preparing=Preparing())
    run.prepared = True


def shared_now(run: Run, now: Mapping[str, str]) -> dict[str, str]:
    """Return the first host of each shared disk, from a new check; for hosts that are gone, from the last."""
    firsts = dict(now)
    for name, group in run.staged.shared.items():
        if name not in run.names:
            mate = next((other for other in run.names if run.staged.shared.get(other) == group), None)
            if mate is not None:
                firsts[name] = now.get(mate, mate)
    return firsts
