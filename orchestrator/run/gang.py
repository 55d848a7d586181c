"""The rules of a gang of tasks: when one end means the end of the others, and when all is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto

from orchestrator.diagnosis.ends import failed
from orchestrator.events import TaskExited
from orchestrator.model import Completion, Role, TaskId


class GangDecision(Enum):
    GO_ON = auto()
    STOP_FAILED = auto()  # one failed: stop the others
    STOP_COMPLETE = auto()  # what matters is done: stop those that never end by themselves
    ENDED = auto()  # nothing is left to wait for


def decide(
    tasks: Collection[TaskId], ends: Mapping[TaskId, TaskExited], completion: Completion
) -> GangDecision:
    """Return what the ends known so far ask for."""
    if len(ends) == len(tasks):
        return GangDecision.ENDED
    if any(map(failed, ends.values())):
        return GangDecision.STOP_FAILED
    if all(task in ends for task in essential(tasks, completion)):
        return GangDecision.STOP_COMPLETE
    return GangDecision.GO_ON


def essential(tasks: Collection[TaskId], completion: Completion) -> list[TaskId]:
    """The tasks whose success is the run's success; the others only serve them."""
    match completion:
        case Completion.CHIEF:
            chiefs = [task for task in tasks if task.role is Role.CHIEF]
            return chiefs or [min(task for task in tasks if task.role is Role.WORKER)]
        case Completion.ALL:
            trainers = [task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)]
            return trainers or list(tasks)


def succeeded(tasks: Collection[TaskId], ends: Mapping[TaskId, TaskExited], completion: Completion) -> bool:
    """Return True if the run reached its goal: every essential task exited 0 and none failed by itself."""
    needed = essential(tasks, completion)
    return all(task in ends and ends[task].code == 0 for task in needed) and not any(
        map(failed, ends.values())
    )
