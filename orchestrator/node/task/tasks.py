"""Starting and stopping tasks: the agent's side of `start` and `control`."""

from __future__ import annotations

import os
from typing import Any

from ..base import ending, lenient
from ..base.descriptors import replace_file
from ..base.fault import NodeError
from ..base.paths import Paths, TaskFolder, make_private
from ..serve.agent import Agent, Request
from . import control, leases, state
from . import start as starting

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_SWEEP_SECONDS = 60.0


def start(agent: Agent, request: Request) -> None:
    """Start a task; its guard inherits the lease on its port, so the lease lives as long as the task."""
    paths, run, spec = agent.paths, request["run"], request["spec"]
    attempt, task = request["attempt"], request["task"]
    store_plan(paths, run, request.get("plan"))
    if starting.is_forbidden(paths, run):
        raise starting.forbidden(run)
    held = leases.held(agent, spec.get("port"))
    turns = agent.rooms.setdefault("turns", Turns(agent))
    turns.begin(run)
    agent.in_child(
        request,
        lambda: starting.start(paths, run, attempt, task, spec, list(held)),
        seconds=_START_SECONDS,
        keep=held,
        after=lambda: turns.end(run),
    )


class Turns:
    """Makes what ends a run wait for the starts that were asked for before it.

    A start works in a child: without this, a stop that overtakes it would find nothing to stop.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._starting: list[str] = []  # runs, one entry per start under way
        self._waiting: list[Request] = []

    def begin(self, run: str) -> None:
        self._starting.append(run)

    def end(self, run: str) -> None:
        self._starting.remove(run)
        if run not in self._starting:
            ready = [request for request in self._waiting if request["run"] == run]
            self._waiting = [request for request in self._waiting if request["run"] != run]
            for request in ready:
                self._agent.serve_one(request)

    def must_wait(self, request: Request) -> bool:
        """Return True if it is too early for this request; it is then served in its turn."""
        if request["run"] not in self._starting:
            return False
        self._waiting.append(request)
        return True


def _too_early(agent: Agent, request: Request) -> bool:
    turns = agent.rooms.get("turns")
    return turns is not None and turns.must_wait(request)


def store_plan(paths: Paths, run: str, plan: str | None) -> None:
    """Keep the run's public plan as it was given: whoever takes over has nothing else.

    A later attempt may have another one; many starts bring the same.
    """
    path = paths.run_json(run)
    make_private(paths.run(run))
    if plan is not None and lenient.text(path) != plan:
        replace_file(path, plan.encode())


def stop(agent: Agent, request: Request) -> dict[str, Any] | None:
    """Ask the living at once, in the loop; what has to be buried first is left to a child.

    `final`: from now on nothing of the run is started, whatever a keeper elsewhere is about to do.
    """
    if request.get("final"):
        _forbid(agent.paths, request["run"])
    if _too_early(agent, request):
        return None
    paths, run, attempt, tasks = agent.paths, request["run"], request.get("attempt"), request.get("tasks")
    grace, kill = float(request.get("grace") or 0.0), bool(request.get("kill", False))
    folders = [f for f in paths.tasks(run, attempt) if tasks is None or f.task in tasks]
    unended = [folder for folder in folders if not control.has_ended(folder)]
    living = [folder for folder in unended if control.is_locked(folder)]
    for folder in living:
        control.stop(folder, grace, kill)
    control.wake(living)
    asked = {folder.task for folder in living}
    known = {folder.task for folder in folders}
    dead = [folder for folder in unended if folder not in living]
    if not dead:
        return {"asked": sorted(asked), "gone": sorted(known - asked)}

    def bury() -> dict[str, Any]:
        asked.update(folder.task for folder in dead if control.stop(folder, grace, kill))
        return {"asked": sorted(asked), "gone": sorted(known - asked)}

    agent.in_child(request, bury, seconds=_STOP_SECONDS)
    return None


def _forbid(paths: Paths, run: str) -> None:
    if not os.path.isdir(paths.run(run)):
        return  # nothing of it was ever here
    try:
        os.close(os.open(paths.stopped(run), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        pass  # no room: what runs is stopped all the same


def sweep(agent: Agent, request: Request) -> None:
    """Kill whatever still bears the cookie of an ended task; return when none is left.

    The answer names the tasks that have not ended: they are left alone.
    """
    if not _too_early(agent, request):
        paths, run = agent.paths, request["run"]
        agent.in_child(request, lambda: _sweep(paths, run), seconds=_SWEEP_SECONDS)


def _sweep(paths: Paths, run: str) -> dict[str, Any]:
    """A guard proves that no descendant is left; what else bears the cookie is looked for by that."""
    folders = paths.tasks(run)
    if not folders:  # removed, perhaps while something ran
        return {"killed": ending.sweep(run), "alive": []}
    control.wake(folder for folder in folders if control.is_locked(folder))
    ended = [folder for folder in folders if _is_over(folder)]
    alive = sorted(folder.task for folder in folders if folder not in ended)
    if ended and not alive:
        return {"killed": ending.sweep(run), "alive": []}
    killed: list[dict[str, Any]] = []
    for folder in ended:
        killed += ending.sweep(f"{run}/{folder.attempt}/{folder.task}")
    return {"killed": killed, "alive": alive}


def _is_over(folder: TaskFolder) -> bool:
    try:
        return state.is_final(control.settle(folder))
    except ending.UnkillableError:
        raise
    except NodeError:
        return True  # removed meanwhile
