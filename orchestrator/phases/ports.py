"""Ports for an attempt that a lost host must not disturb: ones that its old tasks know nothing of."""

from __future__ import annotations

import time
from dataclasses import replace

from orchestrator.events import Noted
from orchestrator.fleet import Cancelled
from orchestrator.model import RunPlan
from orchestrator.phases.connect import lease
from orchestrator.phases.context import Run, log
from orchestrator.phases.mesh import meet
from orchestrator.phases.restart import recovery
from orchestrator.run import restarts
from orchestrator.text import duration

_TRIES = 4  # rows of ports, where others hold some
_PROBE = 5.0  # seconds for one connection
_LOOK = 0.5


def move_away(run: Run) -> None:
    """See to it that no task of a lost host can reach the coming attempt; raise PhaseFailed, Cancelled.

    It gets the next ports where all hosts reach each other there; else it waits until what was left
    alone on the lost hosts has ended itself.
    """
    preparing = run.plan.preparing
    estranged = [name for name in preparing.estranged if name not in run.fleet.sessions]
    if estranged and not preparing.apart:  # once for an attempt, however many spares turn out to be unfit
        names = ", ".join(estranged)
        moved, why = _next(run)
        if moved is not None:
            run.bus.emit(Noted(f"{names} may still run old tasks: the new ones listen on {_ports(moved)}"))
            run.plan = moved
        else:
            _outwait(run, estranged, why)
        run.plan = replace(run.plan, preparing=replace(run.plan.preparing, apart=True))
        run.folder.write_plan(run.plan)
        lease(run, move=False)


def _next(run: Run) -> tuple[RunPlan | None, str]:
    """The plan on the next ports on which it can run; None, and why not."""
    plan, why = run.plan, ""
    for _ in range(_TRIES):
        moved = restarts.next_ports(plan)
        if moved is None:
            return None, "there are no ports above the ones it has"
        held, why = _unusable(run, moved)
        if not why:
            return moved, ""
        log.info("other ports: %s", why)
        if not held:
            return None, why
        plan = moved
    return None, why


def _unusable(run: Run, plan: RunPlan) -> tuple[bool, str]:
    """Why tasks could not meet on these ports, "" when they can; and whether they are only held."""
    hosts = [plan.host(name) for name in run.names]
    ports = {host.name: [spec.port for spec in plan.tasks_on(host.name)] for host in hosts}
    # Whoever is lost over it has no say: the attempt cannot begin without it, and then this comes again.
    meeting = meet(run.fleet, hosts, ports, run=run.id, patience=_PROBE, large=0)
    for name, reply in meeting.listening.items():
        if reply.busy:
            return True, f"port {reply.busy[0].port} of {name} is taken"
    for pair in meeting.pairs:
        if not pair.tcp and pair.target not in meeting.bad:
            return False, f"{pair.source} does not reach {pair.address} of {pair.target}: {pair.why}"
    return False, ""


def _outwait(run: Run, estranged: list[str], why: str) -> None:
    """Wait until the tasks that were left alone there have fenced themselves."""
    fence = restarts.fence(run.plan, run.timings.least_fence) or 0.0
    since = max((run.lost[name] for name in estranged if name in run.lost), default=time.monotonic())
    deadline = since + fence + run.timings.fence_margin
    seconds = deadline - time.monotonic()
    if seconds > 0:
        run.bus.emit(
            Noted(
                f"{', '.join(estranged)} may still run old tasks, and other ports cannot be used "
                f"({why}): waiting {duration(seconds)}, until those have ended themselves"
            )
        )
    while (seconds := deadline - time.monotonic()) > 0:
        if run.stop.wait(min(_LOOK, seconds)):
            raise Cancelled
        recovery.gather(run, 0.0)
        if all(name in run.fleet.sessions for name in estranged):
            return


def _ports(plan: RunPlan) -> str:
    ports = sorted({spec.port for spec in plan.tasks})
    return f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
