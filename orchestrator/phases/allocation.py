"""The Slurm job of a run's hosts: the nodes that it has lost, its end, its signals."""

from __future__ import annotations

import signal

from orchestrator import slurm
from orchestrator.model import Order
from orchestrator.phases.context import Run
from orchestrator.slurm import Fate

_EVERY = 3.0  # seconds between two questions to Slurm


def job(run: Run) -> str:
    """Return the job of a run's hosts; "" where they are not of Slurm."""
    return next((host.job for host in run.hosts if host.job), "")


def fate(run: Run, *, now: bool = False) -> Fate:
    """Return what Slurm says of the run's job and nodes; nothing of a run without one."""
    at, known = run.fate
    if job(run) and (now or run.clock.now() - at > _EVERY):
        known = slurm.look(job(run), {host.ssh for host in run.hosts if host.job})
        run.fate = run.clock.now(), known
    return known


def taken(run: Run) -> dict[str, str]:
    """Return why which of the lost hosts will not come back, by Slurm."""
    if not run.lost:
        return {}
    found = fate(run)
    why = {host.name: found.over or found.down.get(host.ssh, "") for host in run.hosts}
    return {name: why[name] for name in run.lost if why[name]}


def why_stopped(run: Run) -> str:
    """Name who stopped a run: Slurm's signal before a time limit looks like a user's."""
    return "stopped by the user" + (f", or before the time limit of Slurm job {job(run)}" if job(run) else "")


def heed_signals(run: Run) -> None:
    """Make an orderly stop of the signals that Slurm sends to the processes of a job."""
    for number in (signal.SIGTERM, signal.SIGUSR1) if job(run) else ():
        signal.signal(number, lambda *_: run.folder.ask_keeper(Order.STOP))
