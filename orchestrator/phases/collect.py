"""What tasks have said that nobody followed: they were ended before all of their attempt were started."""

from __future__ import annotations

import time

from orchestrator.events import TaskExited, TaskStarted
from orchestrator.model import TaskId
from orchestrator.phases.context import Run
from orchestrator.phases.follow import Follower
from orchestrator.phases.states import on_nodes
from orchestrator.store.reader import events_of

_PATIENCE = 30.0  # seconds for what is on the nodes to come here


def collect(run: Run, attempt: str) -> None:
    """Bring their output here and tell how they ended, of those that ended where hosts answer.

    Also of tasks that nobody told of: their keeper may have been killed over it.
    """
    there = {key: told for key, told in on_nodes(run, attempt).items() if not told[0].alive}
    placed = {spec.id: spec.host for spec in run.plan.tasks if (spec.host, spec.id) in there}
    if not placed:
        return
    history = [stamped.event for stamped in events_of(run.folder)]
    started = {event.task for event in history if isinstance(event, TaskStarted) and event.attempt == attempt}
    for task, host in placed.items():
        if str(task) not in started:
            run.bus.emit(TaskStarted(str(task), host, attempt, there[host, task][0].state.started_as))
    follower = Follower(run, attempt, placed, run.bus.emit)
    for event in history:
        if isinstance(event, TaskExited) and event.attempt == attempt and TaskId.parse(event.task) in placed:
            follower.know(event)
    follower.attach()
    deadline = time.monotonic() + _PATIENCE
    while _awaited(run, follower) and time.monotonic() < deadline:
        if follower.step(0.2) and run.stop.kill:
            break  # a user has no more patience
    follower.leave_behind({task: there[host, task] for task, host in placed.items()})
    follower.close()


def _awaited(run: Run, follower: Follower) -> bool:
    return any(follower.host(task) not in run.lost for task in follower.waiting())
