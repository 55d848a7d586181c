"""Ends of tasks as text, and what they mean for the other tasks and the run. Pure."""

from collections.abc import Collection, Mapping
from enum import Enum, auto

from orchestrator.events import Loss, TaskExited
from orchestrator.model import Completion, Role, TaskId
from orchestrator.text import duration, signal_name

_SIGINT, _SIGKILL, _SIGTERM = 2, 9, 15


def end(exited: TaskExited) -> str:
    """Return `finished`, `was stopped`, `exited with 3`, `was killed by SIGKILL`: follows the task's name."""
    if exited.loss is Loss.UNSTARTED:
        return "was not started"
    if exited.lost:
        return "is lost"
    if exited.stopped:
        return "was stopped" + _unlike_a_stop(exited)
    if exited.signal is not None:
        return f"was killed by {signal_name(exited.signal)}"
    return "finished" if exited.code == 0 else f"exited with {exited.code}"


def end_after(exited: TaskExited) -> str:
    """Return the end with the task's duration, if known: `exited with 3 after 41 s`."""
    timed = exited.seconds and exited.loss is not Loss.UNSTARTED
    return end(exited) + (f" after {duration(exited.seconds)}" if timed else "")


def failed(exited: TaskExited) -> bool:
    """Return True if the task failed by itself."""
    return not exited.stopped and (bool(exited.lost) or exited.code != 0)


def _unlike_a_stop(exited: TaskExited) -> str:
    """Return an unusual end after a stop, as text: the task was killed, or it failed."""
    if exited.signal == _SIGKILL:
        return ", by SIGKILL"
    if exited.signal in (None, _SIGTERM, _SIGINT) and exited.code in (None, 0, 128 + _SIGTERM):
        return ""
    return f", by {signal_name(exited.signal)}" if exited.signal else f", with exit status {exited.code}"


# --- a gang of tasks ---


class GangDecision(Enum):
    GO_ON = auto()
    STOP_FAILED = auto()  # one failed: stop the others
    EVALUATE = auto()  # the deciding tasks are done, and an evaluator still runs
    STOP_COMPLETE = auto()  # the deciding tasks are done: stop those that never exit by themselves
    ENDED = auto()  # nothing is left to wait for


def decide(
    tasks: Collection[TaskId], ends: Mapping[TaskId, TaskExited], completion: Completion
) -> GangDecision:
    """Return what to do, according to the ends so far."""
    if len(ends) == len(tasks):
        return GangDecision.ENDED
    if any(map(failed, ends.values())):
        return GangDecision.STOP_FAILED
    if all(task in ends for task in essential(tasks, completion)):
        evaluating = any(task.role is Role.EVALUATOR for task in tasks if task not in ends)
        return GangDecision.EVALUATE if evaluating else GangDecision.STOP_COMPLETE
    return GangDecision.GO_ON


def essential(tasks: Collection[TaskId], completion: Completion) -> list[TaskId]:
    """Return the tasks whose success is the run's success: those that train, or only their chief."""
    match completion:
        case Completion.CHIEF:
            chiefs = [task for task in tasks if task.role is Role.CHIEF]
            return chiefs or [min(task for task in tasks if task.role is Role.WORKER)]
        case Completion.ALL:
            trainers = [task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)]
            return trainers or list(tasks)


def succeeded(tasks: Collection[TaskId], ends: Mapping[TaskId, TaskExited], completion: Completion) -> bool:
    """Return True if the run succeeded: every essential task exited with 0 and none failed by itself."""
    needed = essential(tasks, completion)
    return all(task in ends and ends[task].code == 0 for task in needed) and not any(
        map(failed, ends.values())
    )
