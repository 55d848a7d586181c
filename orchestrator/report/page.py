"""A run as one page of HTML: no script, nothing from elsewhere, and every text of a task as text."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeAlias

import jinja2

from orchestrator.diagnosis.ends import end, failed
from orchestrator.errors import UsageError
from orchestrator.events import Outcome, TaskStarted
from orchestrator.groups import grouped
from orchestrator.model import RunPlan
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import write_atomically
from orchestrator.render import fold
from orchestrator.render.errors import problems
from orchestrator.render.preflight import pairs_line
from orchestrator.render.summary import summary
from orchestrator.render.tables import RunRow, state_of
from orchestrator.report.curves import charts
from orchestrator.report.story import Story, logs, points, stacks
from orchestrator.run.view import View, replay
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of
from orchestrator.text import cut, duration, moment, plain, size

# By name each value, and who has it.
Rows: TypeAlias = list[tuple[str, list[tuple[str, str]]]]

_LONGEST = 4000  # characters of a text
_MOST_HOSTS = 32  # of which the pairs are drawn
_TONES = {Outcome.SUCCEEDED: "good", Outcome.STOPPED: "quiet"}
# What people call what nobody else may see, beside what `secrets` names.
_SECRET = re.compile(r"(?i)secret|token|passw|credential|auth|(?:^|_)key(?:$|_)")


def write(folder: RunFolder, path: Path | None = None) -> Path:
    """Write a run's page, into its folder unless there is a path; return where. Raise UsageError."""
    text, path = page(folder, time.time()), path or folder.page
    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(f"cannot write the report to {path}", why=reason(error), hint="`-o FILE`") from error
    return path


def page(folder: RunFolder, now: float) -> str:
    """Read a run, and return its page; raise UsageError where its plan or events cannot be read."""
    places = jinja2.Environment(autoescape=True, finalize=_harmless, trim_blocks=True, lstrip_blocks=True)
    places.loader, places.undefined = jinja2.FileSystemLoader(Path(__file__).parent), jinja2.StrictUndefined
    places.filters |= {"duration": duration, "size": size, "end": end, "failed": failed, "moment": _moment}
    return places.get_template("page.html").render(_facts(folder, now))


def _harmless(value: Any) -> Any:
    return cut(plain(value), _LONGEST) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _moment(seconds: float) -> str:
    return moment("%Y-%m-%d %H:%M:%S", seconds)


def _facts(folder: RunFolder, now: float) -> dict[str, Any]:
    plan, history, kept, story = folder.read_plan(), events_of(folder), folder.has_keeper(), Story()
    view = replay(history)
    for stamped in history:
        story.tell(stamped.at, stamped.event)
    began = view.began or plan.created
    ended = max(now if kept and not view.ended else story.last, began)
    # Of a run that ended before its tasks were started the validation may have printed.
    newest = {start.task: start for start in story.starts}
    alone = [TaskStarted(str(spec.id), spec.host, "validate", 0) for spec in plan.tasks]
    told = points(folder, story)
    checks = [check for host in view.hosts.values() for check in host.checks]

    return {
        "plan": plan,
        "view": view,
        "code": folder.read_code(),
        "command": shlex.join(plan.command) or "the training program that comes along",
        "now": now,
        **_verdict(plan, view, kept=kept, since=ended - began),
        "began": began,
        "ended": ended,
        "lanes": grouped((bar.lane, bar) for bar in story.bars),
        "marks": story.marks,
        "last": {task: _last(each[-1]) for task, each in told.items()},
        "charts": charts(told, began),
        "described": story.hosts,
        "versions": versions(story),
        "problems": problems(checks),
        "pairs": story.pairs if 1 < len(plan.hosts) <= _MOST_HOSTS else {},
        "pairs_line": pairs_line(list(story.pairs.values())),
        "environment": environment(plan),
        "logs": logs(folder, list(newest.values()) or alone),
        "stacks": stacks(folder.stacks),
        "notes": [*plan.notes, *story.notes],
    }


def _verdict(plan: RunPlan, view: View, *, kept: bool, since: float) -> dict[str, Any]:
    """How it ended, in the words of the end of a launch; of a living run what it does."""
    if view.ended is None:
        state = state_of(RunRow(plan, view, kept))
        return {"tone": "live", "headline": f"{state}, {duration(since)} after its start", "said": []}
    head, *lines = summary(view)
    doubtful = view.ended.outcome is Outcome.SUCCEEDED and (view.ended.cause or view.ended.warnings)
    # How each task ended stands in a table, and where the logs are is of this machine alone.
    rest = [line for line in lines if not re.match(r"logs: |more: |  [a-z]+/", line)]
    said = dedent("\n".join(rest)).split("\n") if rest else []
    tone = "warn" if doubtful else _TONES.get(view.ended.outcome, "bad")
    return {"tone": tone, "headline": head.removeprefix(f"run {view.ended.run} "), "said": said}


def _last(told: Iterable[Any]) -> dict[str, str]:
    """The last of each number that a task told."""
    newest = {name: value for point in told for name, value in point._asdict().items() if value is not None}
    return {name: f"{value:,.0f}" if name == "step" else f"{value:.4g}" for name, value in newest.items()}


def rows(told: Iterable[tuple[str, tuple[str, str]]]) -> Rows:
    """By name each value, and who has it: one value where all have the same."""
    return [
        (name, [(value, fold.names(who)) for value, who in grouped(each).items()])
        for name, each in grouped(told).items()
    ]


def versions(story: Story) -> Rows:
    return rows(
        (name, (value, host.host))
        for host in story.hosts.values()
        for name, value in {**host.packages, "kernel": host.kernel, "NVIDIA driver": host.driver}.items()
        if value
    )


def environment(plan: RunPlan) -> Rows:
    """Each variable of the tasks; no value of a secret."""
    told = [(name, (value, str(spec.id))) for spec in plan.tasks for name, value in sorted(spec.env.items())]
    hidden = [
        (name, ("***" if value and _SECRET.search(name) else value, task)) for name, (value, task) in told
    ]
    return rows([*hidden, *((name, ("***", "")) for name in plan.secrets)])
