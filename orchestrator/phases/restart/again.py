"""The next attempt after a failed one: its hosts, what they must have, and proof that they are free."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping

from orchestrator.events import Noted, Phase
from orchestrator.fleet import Cancelled
from orchestrator.model import Preparing
from orchestrator.phases import connect, ports, steps
from orchestrator.phases.context import PhaseFailed, Run, fail_on, phase
from orchestrator.phases.launch import launch
from orchestrator.phases.restart import recovery, seats
from orchestrator.phases.restart.free import prove_free
from orchestrator.run import restarts
from orchestrator.run.restarts import NoSeatError, fits, unseat

_LOOK = 0.5  # seconds between two looks


class CannotSeatError(PhaseFailed):
    """Too few hosts are left, and waiting has not helped: no further attempt can do better."""


def rest(run: Run, seconds: float) -> None:
    """The pause between two attempts, in which lost hosts may come back; raise Cancelled."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if run.stop.asked:
            raise Cancelled
        if any(host.name in run.lost for host in run.hosts):
            recovery.gather(run, min(_LOOK, left))
        else:
            run.stop.wait(min(_LOOK, left))


def start_again(run: Run, attempt: int) -> None:
    """Have all hosts at hand, prove that nothing of the last attempt is left there, start all tasks.

    Raise PhaseFailed; Cancelled when a user asks for the end.
    """
    met: set[str] = set()  # hosts that were lost over it
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
            elif failed.lost and failed.lost == failed.hosts.keys() and met.isdisjoint(failed.lost):
                # Nothing was started: waiting for them, or spares, cost no restart. Once for each host,
                # since one that comes and goes would hold the run up without end.
                met |= failed.lost
            else:
                raise
        else:
            break
    run.made.clear()
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
        ports.move_away(run)
    steps.prepare(run, joined)


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
    while lost := {host.name for host in run.hosts} & run.lost.keys():
        if run.stop.asked:
            raise Cancelled
        helped = policy.min_hosts is not None or any(
            fits(spare, run.plan.host(name)) for spare in seats.candidates(run, absent) for name in lost
        )
        patience = min(run.timings.host_return, policy.host_timeout) if helped else policy.host_timeout
        if all(time.monotonic() - run.lost[name] > patience for name in lost):
            return lost | unfit
        recovery.gather(run, _LOOK)
    return unfit
