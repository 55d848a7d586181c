"""The end of a run: each task's end, the root cause with its last lines, where the logs are. Pure."""

import re

from orchestrator import ranges
from orchestrator.diagnosis.ends import end
from orchestrator.events import Level, Outcome, RunEnded
from orchestrator.model import Role, TaskId
from orchestrator.quoting import shown
from orchestrator.ranges import grouped
from orchestrator.render import fold
from orchestrator.render.errors import block, of_hosts, problems
from orchestrator.render.grid import QUOTE, table
from orchestrator.run.view import TaskView, View
from orchestrator.text import duration, plain, size

_HEAD = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.STOPPED: "was stopped",
    Outcome.CLUSTER: "was given up before its tasks were started,",
}


def summary(view: View, *, shown: bool = True) -> list[str]:
    """Return the lines that end a run; none while it goes on. `shown`: hosts' errors were shown."""
    ended = view.ended
    if ended is None:
        return []
    tries = f", in attempt {ended.attempts}" if ended.attempts > 1 else ""
    doubt = ", with a loss that is not finite," if ended.outcome is Outcome.SUCCEEDED and ended.cause else ""
    head = f"run {ended.run} {_HEAD[ended.outcome]}{doubt} after {duration(ended.seconds)}{tries}"
    started = bool(view.failures) or any(
        task.started is not None or task.exited for task in view.tasks.values()
    )
    losses = ((task.task, task.missing) for task in view.tasks.values() if task.missing)
    missing = (f"{task}: {size(lost)} of its log were lost on the node" for task, lost in losses)
    rows = [f"  {row}" for row in (*ends(view), *missing)] if started else []
    logs = [f"logs: {ended.folder}/logs", _more(view, ended)]
    where = logs if started else [f"more: {ended.folder}/debug.log"]
    silent = [name for name in ended.unproven if name not in ended.alive]
    doubts = [f"{fold.names(ended.alive)}: KILL does not end the tasks"] if ended.alive else []
    if silent:
        doubts.append(f"{fold.names(silent)}: no answer; tasks of the run may be alive there")
    output = [
        head,
        *rows,
        *(f"  attempt {failure.attempt} failed: {failure.cause}" for failure in view.failures),
        *cause(view, ended, shown=shown),
        *([f"not started again: {ended.given_up}"] if ended.given_up else []),
        *(line for text in ended.warnings for line in block(text, word="warning")),
        *(block("\n".join(doubts), hint=ended.hint, word="warning") if doubts else ()),
        *(where if ended.folder else []),
    ]
    return [plain(line) for line in output]


def _more(view: View, ended: RunEnded) -> str:
    """Return commands for an ended run; the files of a rehearsal's tasks are gone with its hosts."""
    name = view.planned.name if view.planned else ""
    run = shown(name) if name and not name.startswith("-") else ended.run
    page = f"more: `orchestrate report {run}` writes a page"
    rehearsed = all(re.fullmatch(r"rehearsal-\d+", task.host) for task in view.tasks.values())
    return page if rehearsed else f"{page}, `orchestrate pull {run}` fetches what the tasks wrote"


def ends(view: View) -> list[str]:
    """Return task, host, end and time, aligned; tasks with the same end share a row."""
    # In the order of TF_CONFIG: a viewer that came late has not seen the plan.
    places = {task: TaskId.parse(task) for task in view.tasks}
    order = sorted(places, key=lambda task: (list(Role).index(places[task].role), places[task].index))
    tasks = [view.tasks[task] for task in order]
    groups = grouped((_end(task), task) for task in tasks)
    if len(tasks) <= len(groups) + 4:  # one row each is short enough, and shows more
        rows = [(task.task, task.host, _end(task), _time([task])) for task in tasks]
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
    return table(("task", "host", "end", "time"), rows)[1:] if rows else []


def cause(view: View, ended: RunEnded, *, shown: bool = True) -> list[str]:
    """Return the root cause, its last lines unchanged, and a fix."""
    quotes = [f"{QUOTE}{plain(line)}".rstrip() for line in ended.last_lines]
    quotes = ["  its last lines:", *quotes] if quotes else []
    if not ended.cause or ended.outcome is Outcome.STOPPED:
        return quotes
    if ended.outcome is Outcome.CLUSTER and (errors := _errors(view, ended)):
        return [] if shown else errors
    hint = [] if ended.unproven else block("", hint=ended.hint)
    if ended.outcome is Outcome.SUCCEEDED:
        return [*block(ended.cause, ended.why, word="warning"), *hint]
    return [*block(ended.cause, ended.why), *quotes, *hint]


def _errors(view: View, ended: RunEnded) -> list[str]:
    """Return the errors of hosts if one is the cause: a launch has shown them when its phase ended."""
    failed = [host.failed for host in view.hosts.values() if host.failed]
    checks = [check for host in view.hosts.values() for check in host.checks if check.level is Level.FAIL]
    if not any(what in ended.cause for what in [*(f.what for f in failed), *(c.found for c in checks)]):
        return []
    return [*of_hosts(failed), *problems(checks)]


def _end(task: TaskView) -> str:
    if task.exited:
        return end(task.exited)
    return "is not known to have ended" if task.started is not None else "was never started"


def _time(tasks: list[TaskView]) -> str:
    seconds = [task.exited.seconds for task in tasks if task.exited]
    return fold.span(seconds, duration) if seconds else ""
