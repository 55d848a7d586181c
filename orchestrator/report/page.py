"""A run as one page of HTML: no script, nothing from elsewhere, and every text of a task as text."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import jinja2

from orchestrator.diagnosis.ends import end, failed
from orchestrator.errors import UsageError
from orchestrator.events import Outcome
from orchestrator.model import RunPlan
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import write_atomically
from orchestrator.ranges import grouped
from orchestrator.render import fold
from orchestrator.render.errors import problems
from orchestrator.render.preflight import pairs_line
from orchestrator.render.summary import summary
from orchestrator.render.tables import RunRow, state_of
from orchestrator.report.curves import PACE, charts, last
from orchestrator.report.story import Story, points, read
from orchestrator.run import peers
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_lines
from orchestrator.text import cut, duration, moment, plain, size

# By name each value, and who has it.
Rows: TypeAlias = list[tuple[str, list[tuple[str, str]]]]

_LONGEST = 4000  # characters of a text
_LAST = 40  # lines of a log
_STACKS = 3  # files, the newest
_MOST_STACKS = 1000  # lines of one
_MOST_HOSTS = 32  # of which the pairs are drawn
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
    places.filters |= {"duration": duration, "size": size, "end": end, "failed": failed, "moment": moment}
    return places.get_template("page.html").render(_facts(folder, now))


def _harmless(value: Any) -> Any:
    return cut(plain(value), _LONGEST) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _facts(folder: RunFolder, now: float) -> dict[str, Any]:
    story = read(folder)
    plan, view = story.plan, story.view
    began = view.began or plan.created
    ended = max(now if story.kept and not view.ended else story.last, began)
    starts = [attempts[-1] for attempts in story.starts.values()]
    logs = ((start, last_lines(folder.log(start.attempt, start.task), _LAST)) for start in starts)
    stacks = sorted(folder.stacks.glob("*.txt"), reverse=True)[:_STACKS]
    told = points(folder, story)
    tone, headline, said = _verdict(story, ended - began)

    return {
        "plan": plan,
        "view": view,
        "story": story,
        "code": folder.read_code(),
        "command": shlex.join(plan.command) or "the training program that comes along",
        "now": now,
        "tone": tone,
        "headline": headline,
        "said": said,
        "began": began,
        "ended": ended,
        "last": (numbers := {task: last(each) for task, each in told.items()}),
        "metrics": sorted({name for each in numbers.values() for name in each} - {"step", "loss", PACE}),
        "charts": charts(told, began, story.restarts),
        "versions": versions(story),
        "problems": problems([check for host in view.hosts.values() for check in host.checks]),
        "pairs": story.pairs if 1 < len(plan.hosts) <= _MOST_HOSTS else {},
        "pairs_line": pairs_line(list(story.pairs.values())),
        "environment": environment(plan),
        "logs": [(start, lines) for start, lines in logs if lines],
        "stacks": {path.name: last_lines(path, _MOST_STACKS) for path in stacks},
        "notes": list(dict.fromkeys([*plan.notes, *story.notes])),
    }


def _verdict(story: Story, since: float) -> tuple[str, str, list[str]]:
    """Return tone, headline and lines of how it ended, as a launch tells it; of a living run what it does."""
    ended = story.view.ended
    if ended is None:
        state = state_of(RunRow(story.plan, story.view, story.kept))
        said = [f"warning: {peers.warning(story.view.apart)}"] if story.view.apart else []
        return "warn" if said else "live", f"{state}, {duration(since)} after its start", said
    head, *lines = summary(story.view, told=False)
    well = ended.outcome is Outcome.SUCCEEDED
    tone = "warn" if well and (ended.cause or ended.warnings) else ended.outcome
    # How each task ended stands in a table, and where the logs are is of this machine alone.
    said = [line for line in lines if not re.match(r"logs: |more: |  [a-z]+/", line)]
    return tone, head.removeprefix(f"run {ended.run} "), said


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
    told = [
        (name, ("***" if value and _SECRET.search(name) else value, str(spec.id)))
        for spec in plan.tasks
        for name, value in sorted(spec.env.items())
    ]
    return rows([*told, *((name, ("***", "")) for name in plan.secrets)])
