"""Starting and stopping tasks: the agent's side of `start` and `control`."""

from __future__ import annotations

import os

from . import control, procs, state
from . import start as starting
from .fault import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from .agent import Agent, Request
    from .paths import Paths, TaskFolder

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


def start(agent: Agent, request: Request) -> None:
    """Start a task; its guard inherits the lease on its port, so the lease lives as long as the task."""
    paths, run, spec = agent.paths, request["run"], request["spec"]
    attempt, task = request["attempt"], request["task"]
    store_plan(paths, run, request.get("plan"))
    lease = agent.leases.get(spec.get("port"))
    held = () if lease is None else (lease,)
    agent.in_child(
        request,
        lambda: starting.start(paths, run, attempt, task, spec, list(held)),
        seconds=_START_SECONDS,
        keep=held,
    )


def store_plan(paths: Paths, run: str, plan: Optional[str]) -> None:
    """Keep the run's public plan as it was given, once: whoever takes over has nothing else."""
    path = paths.run_json(run)
    os.makedirs(paths.run(run), 0o700, exist_ok=True)
    if plan is None or os.path.exists(path):
        return
    beside = f"{path}.{os.getpid()}"
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(plan)
    os.replace(beside, path)


def stop(agent: Agent, request: Request) -> Optional[Dict[str, Any]]:
    """Ask the living at once, in the loop; what has to be buried first is left to a child."""
    paths, run, attempt, tasks = agent.paths, request["run"], request.get("attempt"), request.get("tasks")
    grace, kill = float(request.get("grace") or 0.0), bool(request.get("kill", False))
    folders = [f for f in paths.tasks(run, attempt) if tasks is None or f.task in tasks]
    living = [folder for folder in folders if control.is_locked(folder)]
    for folder in living:
        control.stop(paths, run, folder.attempt, [folder.task], grace, kill)
    if all(folder in living or state.is_final(state.read(folder)) for folder in folders):
        asked = sorted({folder.task for folder in living})
        return {"asked": asked, "gone": sorted({folder.task for folder in folders} - set(asked))}
    agent.in_child(
        request, lambda: control.stop(paths, run, attempt, tasks, grace, kill), seconds=_STOP_SECONDS
    )
    return None


def sweep(agent: Agent, request: Request) -> Dict[str, Any]:
    """Kill whatever still bears the cookie of an ended task; return when none is left."""
    paths, run = agent.paths, request["run"]
    ended = [folder for folder in paths.tasks(run) if is_over(paths, folder)]
    if len(ended) == len(paths.tasks(run)):
        return {"killed": procs.sweep(run)}
    killed: List[Dict[str, Any]] = []
    for folder in ended:
        killed += procs.sweep(f"{run}/{folder.attempt}/{folder.task}")
    return {"killed": killed}


def is_over(paths: Paths, folder: TaskFolder) -> bool:
    try:
        return state.is_final(control.settle(paths, folder.run, folder.attempt, folder.slug))
    except NodeError as error:
        if error.kind == "orphan":
            raise
        return True  # removed meanwhile
