"""A run as one HTML page without external resources; every text of a task is escaped."""

import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jinja2
import msgspec

from orchestrator.diagnosis.ends import end, failed
from orchestrator.errors import unless_refused
from orchestrator.events import Last, Outcome
from orchestrator.model import RunPlan
from orchestrator.plainfile import write_atomically
from orchestrator.planning.commands import command_of, own_commands
from orchestrator.program.invocation import options_of
from orchestrator.ranges import grouped
from orchestrator.render import fold
from orchestrator.render.errors import problems
from orchestrator.render.preflight import pairs_line
from orchestrator.render.summary import summary
from orchestrator.render.tables import state_of
from orchestrator.report.curves import PACE, charts, last
from orchestrator.report.story import Story, points, read
from orchestrator.run import hang
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_lines
from orchestrator.text import cut, duration, moment, plain, size

# Each name with its values, and the owners of each value.
Rows: TypeAlias = list[tuple[str, list[tuple[str, str]]]]

_LONGEST = 4000  # characters of a text
_LAST = 40  # lines of a log
_STACKS = 3  # files, the newest
_MOST_STACKS = 1000  # lines of one
_MOST_HOSTS = 32  # for which the pairs are drawn
_MOST_FACTS = 200  # of one report
# Names that usually belong to secrets, in addition to those in `secrets`.
_SECRET = re.compile(r"(?i)secret|token|passw|credential|auth|(?:^|_)key(?:$|_)")
_KEY = re.compile(r"(?i)secret|passw|credential|(?:^|[_-])(?:key|token)$")


class Renewal(NamedTuple):
    """A page that renews itself."""

    script: str
    digest: str  # of the script, as in a Content-Security-Policy


def write(text: str, path: Path) -> Path:
    """Write a page and return its path; raise UsageError."""
    with unless_refused(f"cannot write the report to {path}", "`-o FILE`"):
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    return path


def page(folder: RunFolder, now: float, live: Renewal | None = None) -> str:
    """Read a run and return its page; raise UsageError if its plan or events cannot be read."""
    return draw("page.html", {**_facts(folder, now), "now": now, "live": live})


def draw(template: str, facts: Mapping[str, Any]) -> str:
    places = jinja2.Environment(autoescape=True, finalize=_harmless, trim_blocks=True, lstrip_blocks=True)
    places.loader, places.undefined = jinja2.FileSystemLoader(Path(__file__).parent), jinja2.StrictUndefined
    places.filters |= {"duration": duration, "size": size, "end": end, "failed": failed, "moment": moment}
    return places.get_template(template).render(facts)


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
    curves = points(folder, story)
    tone, headline, details = _verdict(story, ended - began)

    return {
        "plan": plan,
        "view": view,
        "story": story,
        "code": folder.read_code(),
        "command": shlex.join(plan.command) or "the bundled training program",
        "commands": own_commands(plan),
        "tone": tone,
        "headline": headline,
        "details": details,
        "began": began,
        "ended": ended,
        "last": (numbers := {task: last(each) for task, each in curves.items()}),
        "metrics": sorted({name for each in numbers.values() for name in each} - {"step", "loss", PACE}),
        "charts": charts(curves, began, story.restarts),
        "used": charts(story.used, began, zero=True),
        "hosts_used": list(story.used),
        "parameters": parameters(story),
        "results": stated(story, Last.RESULT),
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
    """Return tone, headline and details: the outcome of a run, as a launch shows it, or its state."""
    ended = story.view.ended
    if ended is None:
        state = state_of(story.view, kept=story.kept)
        warnings = [f"warning: {hang.separate_warning(story.view.apart)}"] if story.view.apart else []
        return "warn" if warnings else "live", f"{state}, {duration(since)} after its start", warnings
    head, *lines = summary(story.view, shown=False)
    well = ended.outcome is Outcome.SUCCEEDED
    tone = "warn" if well and (ended.cause or ended.warnings) else ended.outcome
    # A table shows how each task ended, and the path of the logs is valid on this machine only.
    details = [line for line in lines if not re.match(r"logs: |more: |  [a-z]+/", line)]
    return tone, head.removeprefix(f"run {ended.run} "), details


def rows(facts: Iterable[tuple[str, tuple[str, str]]]) -> Rows:
    """Return the values of each name, with their owners: a single value if all have the same."""
    return [
        (name, [(value, fold.names(who)) for value, who in grouped(each).items()])
        for name, each in grouped(facts).items()
    ]


def parameters(story: Story) -> Rows:
    """Return the parameters that tasks report, and those in the arguments and variables of the launch."""
    plan = story.plan
    reported = stated(story, Last.PARAMS)
    names = {name.replace("-", "_") for name, _ in reported}
    variables = {**plan.recipe.job_env, **plan.recipe.env}
    shown = {name: "***" if _SECRET.search(name) else value for name, value in variables.items()}
    options = {host.name: options_of(command_of(host, plan.command)) for host in plan.hosts}
    given = {host: {**_masked(each), **shown} for host, each in options.items()}
    others = (
        (name, (value, host))
        for host, each in given.items()
        for name, value in each.items()
        if name.replace("-", "_") not in names
    )
    return [*rows(others), *reported]


def stated(story: Story, kind: Last) -> Rows:
    """Return the facts of this kind that tasks report."""
    return rows(
        (name, (value if isinstance(value, str) else msgspec.json.encode(value).decode(), task))
        for task, data in story.statements.get(kind, {}).items()
        for name, value in islice(_masked(data).items(), _MOST_FACTS)
    )


def _masked(data: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the values of parameters that are keys; `max_tokens` and `tokenizer` are not."""
    return {name: "***" if _KEY.search(name) else value for name, value in data.items()}


def versions(story: Story) -> Rows:
    return rows(
        (name, (value, host.host))
        for host in story.hosts.values()
        for name, value in {**host.packages, "kernel": host.kernel, "NVIDIA driver": host.driver}.items()
        if value
    )


def environment(plan: RunPlan) -> Rows:
    """Return each variable of the tasks; a secret has no value."""
    variables = [
        (name, ("***" if value and _SECRET.search(name) else value, str(spec.id)))
        for spec in plan.tasks
        for name, value in sorted(spec.env.items())
    ]
    return rows([*variables, *((name, ("***", "")) for name in plan.secrets)])
