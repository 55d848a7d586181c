"""The end of a run: each task's end, the first failure with its last lines, where the logs are. Pure."""

from __future__ import annotations

from orchestrator import ranges
from orchestrator.ends import end
from orchestrator.events import Outcome, RunEnded
from orchestrator.render import fold
from orchestrator.render.errors import block
from orchestrator.text import duration, plain, size
from orchestrator.view import TaskView, View

_HEAD = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.STOPPED: "was stopped",
    Outcome.CLUSTER: "did not start",
}


def summary(view: View) -> list[str]:
    """The lines that end a run; none while it goes on."""
    ended = view.ended
    if ended is None:
        return []
    head = f"run {ended.run} {_HEAD[ended.outcome]} after {duration(ended.seconds)}"
    return [
        head,
        *(f"  {row}" for row in ends(view)),
        *(
            f"  {task.task}: {size(task.missing)} of its log were lost on the node"
            for task in view.tasks.values()
            if task.missing
        ),
        *cause(ended),
        *([f"logs: {plain(ended.folder)}/logs"] if view.tasks and ended.folder else []),
    ]


def ends(view: View) -> list[str]:
    """Task, host, end and time, aligned; tasks that ended alike share a row."""
    groups: dict[str, list[TaskView]] = {}
    for task in view.tasks.values():
        groups.setdefault(_end(task), []).append(task)
    if len(view.tasks) <= len(groups) + 4:  # a row each is short enough, and says more
        rows = [(task.task, task.host, _end(task), _time([task])) for task in view.tasks.values()]
    else:
        rows = [
            (
                ranges.fold(task.task for task in alike),
                fold.names(task.host for task in alike),
                how,
                _time(alike),
            )
            for how, alike in groups.items()
        ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return [
        plain(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        ).rstrip()
        for row in rows
    ]


def cause(ended: RunEnded) -> list[str]:
    """The first failure, its last lines as they came, and what to try."""
    if not ended.cause:
        return []
    what, *rest = block(ended.cause, hint=ended.hint)
    shown = [f"    | {plain(line)}".rstrip() for line in ended.last_lines]
    return [what, *(["  its last lines:"] if shown else []), *shown, *rest]


def _end(task: TaskView) -> str:
    if task.exited:
        return end(task.exited)
    return "is not known to have ended" if task.started is not None else "was never started"


def _time(tasks: list[TaskView]) -> str:
    seconds = [task.exited.seconds for task in tasks if task.exited]
    if not seconds:
        return ""
    least, most = duration(min(seconds)), duration(max(seconds))
    return most if least == most else f"{least} to {most}"
