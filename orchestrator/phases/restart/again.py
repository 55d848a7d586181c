"""From hosts to the start of their tasks: the steps of a first attempt, and those of a later one.

Before another attempt it is proven that the last one holds nothing: processes, ports, GPU memory.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Collection, Mapping, Sequence

from orchestrator import ranges, text, wire
from orchestrator.errors import ClusterError, HostError
from orchestrator.events import Noted, Phase, StopBy
from orchestrator.fleet import Cancelled
from orchestrator.model import Preparing
from orchestrator.phases import allocation, connect, data, preflight, stage, stop, validate
from orchestrator.phases.context import PhaseFailed, Run, fail_on, phase
from orchestrator.phases.launch import launch
from orchestrator.phases.mesh import listen
from orchestrator.phases.restart import recovery, seats
from orchestrator.run import restarts
from orchestrator.run.restarts import NoSeatError, fits, unseat
from orchestrator.sync import BackupOrigin, carry
from orchestrator.sync.files import LEFT_OUT, work_folder

_LOOK = 0.5  # seconds between two looks


class CannotSeatError(PhaseFailed):
    """Too few hosts are left, and waiting has not helped: no further attempt can do better."""


def rest(run: Run, seconds: float) -> None:
    """The pause between two attempts, in which lost hosts may come back; raise Cancelled."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if run.stop.asked:
            raise Cancelled
        if run.lost:
            recovery.gather(run, min(_LOOK, left))
        else:
            run.stop.wait(min(_LOOK, left))


def start_again(run: Run, attempt: int) -> None:
    """Have all hosts at hand, prove that nothing of the last attempt is left there, start all tasks.

    Raise PhaseFailed; Cancelled when a user asks for the end.
    """
    while True:
        if run.stop.asked:
            raise Cancelled
        _seat(run, attempt)
        joined = restarts.joined(run.plan)
        try:
            _prepare(run, joined)
        except PhaseFailed as failed:
            if run.stop.asked:
                raise
            if unfit := {name: why for name, why in failed.hosts.items() if name in joined}:
                _set_aside(run, failed.phase, unfit)
            else:
                raise
        else:
            break
    run.staged.made.clear()
    run.plan = dataclasses.replace(run.plan, preparing=Preparing())
    run.folder.write_plan(run.plan)
    launch(run, str(attempt))


def _prepare(run: Run, joined: list[str]) -> None:
    """Bring every host to where its tasks can be started; raise PhaseFailed."""
    with phase(run, Phase.CONNECT):
        fail_on(run.bus, Phase.CONNECT, connect.keep(run))
        connect.lease(run)
        prove_free(run)
        # What was lost over the proof, or before, was not asked: nothing is proven there.
        fail_on(run.bus, Phase.CONNECT, recovery.losses(run))
    prepare(run, joined)


def _set_aside(run: Run, where: Phase, unfit: Mapping[str, str]) -> None:
    """Give the places of spares that are of no use back to those for whom they stood in."""
    for name, why in unfit.items():
        run.bus.emit(Noted(f"{name} cannot stand in for another host ({where}: {why}); it is left out"))
    run.plan = unseat(run.plan, unfit)
    run.folder.write_plan(run.plan)


def _seat(run: Run, attempt: int) -> None:
    """Plan the attempt on the hosts that can be reached."""
    try:
        plan, changes = seats.fill(run, lambda absent: _still_lost(run, absent), attempt)
    except NoSeatError as error:
        raise CannotSeatError(
            Phase.CONNECT, str(error), "mark hosts as `spare = true`, or allow fewer with --min-hosts"
        ) from None
    seats.take(run, plan, changes)


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
            fits(spare, run.plan.host(name)) for spare in seats.candidates(run, absent) for name in lost
        )
        patience = min(run.timings.host_return, policy.host_timeout) if helped else policy.host_timeout
        gone = allocation.taken(run, lost)
        if all(name in gone or time.monotonic() - run.losses.since[name] > patience for name in lost):
            return lost | unfit
        recovery.gather(run, _LOOK)
    return unfit


def prove_free(run: Run) -> None:
    """Raise PhaseFailed naming what still runs, or holds a port or a GPU's memory; Cancelled when a user
    asks for the end.

    A host that was lost when the last attempt was ended may still run its tasks.
    """
    stop.EndAll(run, kill=True, grace=0.0, by=StopBy.FAILURE).wait()
    stop.sweep(run)
    deadline = time.monotonic() + run.timings.release
    while busy := _busy(run):
        if time.monotonic() > deadline:
            fail_on(run.bus, Phase.CONNECT, busy)
        if run.stop.wait(_LOOK):
            raise Cancelled


def _busy(run: Run) -> dict[str, HostError]:
    """Return what is held on which host, and by whom."""
    nonce = secrets.token_hex(8)
    ports = listen(
        run.fleet,
        {
            name: wire.Listen(
                run=run.id,
                ports=[spec.port for spec in run.plan.tasks_on(name)],
                nonce=nonce,
                host=name,
            )
            for name in run.names
        },
    )
    run.fleet.ask(wire.Unlisten(), hosts=run.names)
    gpus = run.fleet.ask(wire.GpuHeld(run=run.id), hosts=run.names)
    swept = run.fleet.ask(wire.Sweep(run=run.id), hosts=run.names, timeout=30.0)
    fail_on(run.bus, Phase.CONNECT, {**ports.bad, **gpus.bad, **swept.bad})
    taken = {name: reply.busy for name, reply in ports.good.items() if reply.busy}
    held = {name: reply.held for name, reply in gpus.good.items() if reply.held}
    alive = {name: reply.alive for name, reply in swept.good.items() if reply.alive}
    return {
        **{name: _gpu(name, found[0]) for name, found in held.items()},
        **{name: _port(name, found[0]) for name, found in taken.items()},
        **{name: _alive(name, found) for name, found in alive.items()},
    }


def _alive(name: str, tasks: Sequence[str]) -> HostError:
    return HostError(
        name,
        f"still runs {', '.join(tasks)} of the last attempt",
        kind="orphan",
        why="SIGKILL has not ended it: it waits in the kernel, for a disk or a driver, or is stopped there",
        hint=f"`ps -eo pid,stat,wchan:30,args` on {name}: state D is ended by what it waits for, or a reboot",
    )


def _port(name: str, first: wire.Busy) -> HostError:
    return HostError(
        name,
        f"has task port {first.port} taken",
        kind="port",
        why=f"{first.words} has it, and nothing of this run is left there",
        hint="end it, then launch again",
    )


def _gpu(name: str, first: wire.GpuProcess) -> HostError:
    return HostError(
        name,
        "has not got back the GPU memory of the last attempt",
        kind="gpu",
        why=f"nvidia-smi shows pid {first.pid} ({first.name}), whose end was proven",
        hint=f"`nvidia-smi` on {name}; a driver that keeps it needs `nvidia-smi --gpu-reset`, or a reboot",
    )


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
    fail_on(run.bus, Phase.STAGE, dict(carried.failed))
    if reached := [name for name, sent in carried.sent.items() if not sent.reused]:
        size = text.size(max(carried.sent[name].bytes for name in reached))
        giver = carried.giver or "this machine"
        run.bus.emit(Noted(f"{backup} ({size}) was copied from {giver} to {ranges.fold(reached)}"))
    if carried.left_out:
        first = text.plain(carried.left_out[0])[:200]
        more = f" and {len(carried.left_out) - 1} more" if carried.left_out[1:] else ""
        run.bus.emit(Noted(f"of {backup} stayed on {carried.giver} ({LEFT_OUT}): {first}{more}"))
    gone = "is lost" if leader not in going_on else "" if source else "has lost its folder"
    match carried.origin:
        case BackupOrigin.COPY:
            said = f"{leader} {gone} with its newest {backup}; every host has that of an attempt before"
        case BackupOrigin.REMOVED:
            said = f"{leader} has removed its {backup}: training starts from the beginning, everywhere"
        case BackupOrigin.NOWHERE if gone:
            said = f"{backup} was only on {leader}, which {gone}: training starts from the beginning"
        case BackupOrigin.NOWHERE:
            said = f"{leader} has no {backup} yet: training starts from the beginning"
        case BackupOrigin.HOST:
            return
    run.bus.emit(Noted(said))


def _emptied(run: Run, leader: str) -> bool:
    """Return True if a host that continues got a new working folder: its disk forgot the last one."""
    group = run.staged.shared.get(leader, leader)
    there = leader in run.names
    return there and any(run.staged.shared.get(name, name) == group for name in run.staged.made)


def shared_now(run: Run, now: Mapping[str, str]) -> dict[str, str]:
    """Return who sees whose disk by a new look at the hosts, and by the last one of those that are gone."""
    known = dict(now)
    for name, group in run.staged.shared.items():
        if name not in run.names:
            mate = next((other for other in run.names if run.staged.shared.get(other) == group), None)
            if mate is not None:
                known[name] = now.get(mate, mate)
    return known
