"""What the nodes know of an attempt's tasks."""

from __future__ import annotations

from orchestrator import wire
from orchestrator.model import TaskId
from orchestrator.phases.context import Run
from orchestrator.planning.takeover import speaks_for


def on_nodes(
    run: Run, attempt: str, timeout: float = 10.0
) -> dict[tuple[str, TaskId], tuple[wire.TaskStatus, float]]:
    """What each host that answers tells of each task, and how far its clock is ahead."""
    answers = run.fleet.ask(wire.States(run=run.id), timeout=timeout)
    clocks = {name: session.clock_offset for name, session in run.fleet.sessions.items()}
    return {
        (name, TaskId.parse(one.task)): (one, clocks.get(name, 0.0))
        for name, reply in answers.good.items()
        for one in reply.tasks
        if one.attempt == attempt
    }


def ended_on_nodes(run: Run, attempt: str) -> dict[TaskId, wire.TaskRecord]:
    """The final states of an attempt's tasks, as their nodes know them."""
    return {
        task: one.state
        for (name, task), (one, _) in on_nodes(run, attempt).items()
        if one.state.state.final and speaks_for(run.plan, name, attempt, one.task)
    }
