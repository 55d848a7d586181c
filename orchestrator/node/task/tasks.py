"""The agent's side of tasks and runs: starting, stopping, and what is on disk, made true first."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Iterator

from ..base import ending, lenient, locks
from ..base.descriptors import replace_file
from ..base.fault import NodeError
from ..base.paths import Paths, TaskFolder, make_private
from ..serve.agent import Agent, Request
from . import control, leases, state
from . import start as starting

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_SWEEP_SECONDS = 60.0
_ROOM = 12 << 20  # bytes of an answer: plans of large clusters are long, and a message holds 16 MB
_WORD_EVERY = 0.25  # seconds between two touches of the keeper's file


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


def states(agent: Agent, request: Request) -> dict[str, Any]:
    """Every task of one run or of all; a task whose processes were killed is settled as lost.

    Of all runs those that continue are told, and of the others the newest: `more` is how many are not.
    """
    paths, told, more, room = agent.paths, [], 0, _ROOM
    runs = reversed(paths.runs()) if request.get("run") is None else [request["run"]]
    for run in runs:  # their names begin with the date
        if not os.path.isdir(paths.run(run)):
            continue
        found = _run(paths, run)
        size = len(json.dumps(found))
        if size <= room or _continues(found):
            told.append(found)
            room -= size
        else:
            more += 1
    return {"runs": told, "more": more}


def _continues(found: dict[str, Any]) -> bool:
    kept = found["keeper"] is not None and found["keeper"]["alive"]
    return kept or any(task["alive"] for task in found["tasks"])


def keep(agent: Agent, request: Request) -> dict[str, Any]:
    """Become the agent of the run's keeper, for as long as we live; only one can be.

    While an agent that the same keeper has lost is still there, its place is not free yet; but our
    words are the keeper's all the same.
    """
    paths, run = agent.paths, request["run"]
    kept: dict[str, int] = agent.rooms.setdefault("keepers", {})  # with the lock
    words: dict[str, int] = agent.rooms.setdefault("words", {})
    store_plan(paths, run, request.get("plan"))
    if run in words and os.fstat(words[run]).st_nlink == 0:  # cleaned away meanwhile
        kept.pop(run, None)
        os.close(words.pop(run))
    if run not in words:
        words[run] = os.open(paths.keeper(run), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        agent.on_word = _Word(words)
    fd = words[run]
    if run not in kept:
        if not locks.take(fd, locks.GLANCE):
            holder = _keeper(paths, run)
            if holder is None or holder["who"] != request["who"]:
                os.close(words.pop(run))
            return {"granted": False, "holder": holder}
        kept[run] = fd
    text = json.dumps({"who": request["who"]}).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    return {"granted": True, "holder": _keeper(paths, run)}


class _Word:
    """Every word of the controller is a word of the keeper: the lifelines of the tasks look at its time."""

    def __init__(self, words: dict[str, int]) -> None:
        self._words = words
        self._last = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _WORD_EVERY:
            self._last = now
            for fd in self._words.values():
                try:
                    os.utime(fd)
                except OSError:
                    pass  # a disk that became read-only: the lifelines hear nothing more


def _run(paths: Paths, run: str) -> dict[str, Any]:
    return {
        "run": run,
        "plan": lenient.text(paths.run_json(run)),
        "keeper": _keeper(paths, run),
        "stopped": os.path.exists(paths.stopped(run)),
        "tasks": [known for folder in paths.tasks(run) for known in _task(folder)],
    }


def _task(folder: TaskFolder) -> Iterator[dict[str, Any]]:
    """Nothing of a task that was removed meanwhile."""
    try:
        try:
            found = control.settle(folder)
        except ending.UnkillableError:  # the others are told all the same
            found = state.read(folder)
    except (control.UnknownTaskError, FileNotFoundError):
        return
    yield {
        "attempt": folder.attempt,
        "task": folder.task,
        "state": found,
        "alive": not state.is_final(found) and control.is_locked(folder),
        "log_size": lenient.size(folder.log),
    }


def _keeper(paths: Paths, run: str) -> dict[str, Any] | None:
    try:
        alive = locks.is_taken(paths.keeper(run))
        with open(paths.keeper(run), "rb") as file:
            who = json.loads(file.read() or b"{}").get("who")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return {"who": who, "alive": alive}
