"""Differences between runs: outcome, options, code, data, packages, hosts, and environment."""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from posixpath import commonprefix, normpath
from statistics import median
from typing import NamedTuple, TypeAlias

from msgspec.structs import asdict

from orchestrator.config.targets import is_loopback
from orchestrator.events import HostDescribed
from orchestrator.frameworks import alone
from orchestrator.planning.commands import own_commands
from orchestrator.ranges import grouped
from orchestrator.render import fold
from orchestrator.render.grid import table
from orchestrator.render.tables import state_of
from orchestrator.report.curves import PACE, Point, last
from orchestrator.report.page import Rows, environment, rows, versions
from orchestrator.report.story import Story, points, read
from orchestrator.requests import LaunchRequest
from orchestrator.store import RunFolder
from orchestrator.store.known import read_lock
from orchestrator.text import count, cut, json_of, size

_SHOWN = 12  # differences of one area; JSON has all
_WIDEST = 48  # characters of a value
_REST = 17  # cells of a line for the area and gaps
# Fields of a request that belong to other areas or to the plan, or do not affect a run.
_PLANNED = "inventory command env framework validate validation replay terminal notify metrics name"
_CLOSE = 0.1  # relative difference of numbers, up to which they count as equal
_PINNED = re.compile(r"(?m)^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s\\]+(?: ; [^\\\n]*[^\\\s])?)")  # and marker
_DERIVED = re.compile(r"TMPDIR|ORCHESTRATE_.*")  # follow from hosts and their ports

Value: TypeAlias = str | float | None  # None: it has none
Facts: TypeAlias = Mapping[str, Mapping[str, Value]]  # area -> name -> value


class Difference(NamedTuple):
    """A fact that runs do not share, with the value of each."""

    area: str
    name: str
    values: tuple[Value, ...]


def facts_of(
    folder: RunFolder, story: Story | None = None, curves: Mapping[str, Sequence[Point]] | None = None
) -> Facts:
    """Return everything that is compared; raise UsageError for a run that cannot be read."""
    story, code = story or read(folder), folder.read_code()
    plan, ended, recipe = story.plan, story.view.ended, story.plan.recipe
    lines = (points(folder, story) if curves is None else curves).values()
    lock = read_lock(plan.environment.name) if plan.environment else None
    pins = {f"{name} (lock)": ", ".join(each) for name, each in grouped(_PINNED.findall(lock or "")).items()}
    return {
        "outcome": {
            "state": state_of(story.view, kept=story.kept),
            **({"kind": ended.kind, "cause": ended.cause, "attempts": f"{ended.attempts}"} if ended else {}),
            "seconds": ended.seconds if ended else None,
            "steps a second": _median(point.values.get(PACE) for each in lines for point in each),
            "loss": _median(last(each).get("loss") for each in lines),
        },
        "options": {
            "command": shlex.join(plan.command),
            **own_commands(plan),
            "tasks": ", ".join(str(spec.id) for spec in plan.tasks),
            "framework": recipe.framework,
            "Keras 2": "yes" if recipe.legacy_keras else "no",
            "validation": plan.admission.validate_command or ("yes" if plan.admission.validate else "no"),
            **_options(folder.read_request()),
        },
        "code": {
            "folder": plan.cwd,
            "git": f"{code.commit[:12]} {code.branch}".strip(),
            "not committed": count(code.diff.count("\n"), "line") if code.diff else "",
            "digest": plan.tree[:16],
        },
        "files": code.files,
        "data": {
            "digest": plan.data_digest[:16],
            **dict.fromkeys(map(normpath, plan.data.paths if plan.data else ()), "named"),
        },
        "packages": pins | texts(versions(story)),
        "hosts": {
            "names": fold.names(host.name for host in plan.hosts),
            # Those of a rehearsal are chosen at random.
            "address": ", ".join(host.address for host in plan.hosts if not is_loopback(host.address)),
            **texts(rows(_hardware(story.hosts.values()))),
        },
        "environment": {
            name: text
            for name, text in alone(plan.recipe.framework, texts(environment(plan))).items()
            if not _DERIVED.fullmatch(name)
        },
    }


def _options(request: LaunchRequest | None) -> dict[str, str]:
    """Return what [job] and the command line set, without what is part of the plan."""
    given = {} if request is None else {**asdict(request), **asdict(request.job)}
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value or "")
        for name, value in given.items()
        if name not in _PLANNED.split()
    }


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    return median(numbers) if numbers else None


def _hardware(hosts: Iterable[HostDescribed]) -> Iterator[tuple[str, tuple[str, str]]]:
    for host in hosts:
        yield "CPU", (f"{host.cpus} x {host.processor}", host.host)
        yield "memory", (size(host.memory), host.host)
        yield "GPU", (", ".join(host.gpus), host.host)


def texts(facts: Rows) -> dict[str, str]:
    """Return each variable, package or part as one text, with the owners of values that differ."""
    return {
        name: "; ".join(f"{value} ({who})" if len(values) > 1 else value for value, who in values)
        for name, values in facts
    }


def differences(runs: Sequence[Facts]) -> list[Difference]:
    """List the differences between runs, in the order of the facts; files only if all runs have a record."""
    differing = []
    for area in runs[0]:
        comparable = area != "files" or all(run[area] for run in runs)
        for name in dict.fromkeys(name for run in runs for name in run[area]) if comparable else ():
            first, *others = values = tuple(run[area].get(name) for run in runs)
            if not all(_alike(first, value) for value in others):
                differing.append(Difference(area, name, values))
    return differing


def _alike(a: Value, b: Value) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_CLOSE)
    return (a or "") == (b or "")


def shown(runs: tuple[str, str], rows: Sequence[Difference], *, json: bool, width: int | None) -> list[str]:
    """Return the differences as a table, or all of them as JSON."""
    if json:
        entries = [{"area": area, "what": name, "a": a, "b": b} for area, name, (a, b) in rows]
        facts = {"a": runs[0], "b": runs[1], "differences": entries}
        return [json_of(facts).decode()]
    if not rows:
        return [f"{runs[0]} and {runs[1]} do not differ in anything that this machine has recorded"]
    room, lines = (width or 1000) - _REST, list[tuple[str, ...]]()
    names = max(8, min(max(len(difference.name) for difference in rows), room // 3))
    most = max(8, min(_WIDEST, (room - names) // 2))
    for area, of_area in grouped((difference.area, difference) for difference in rows).items():
        cells = [(_end(name, names), *_cells(most, *values)) for _, name, values in of_area[:_SHOWN]]
        if len(of_area) > _SHOWN:
            cells.append((f"and {len(of_area) - _SHOWN} more", "--json has all", ""))
        lines += [("" if number else area, *row) for number, row in enumerate(cells)]
    return table(("what", "differs", *(_end(run, most) for run in runs)), lines, width)


def written(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value or "-"


def _end(text: str, most: int) -> str:
    return cut(text[::-1], most)[::-1]


def _cells(most: int, *values: Value) -> tuple[str, ...]:
    """Cut two values to a column's width, starting shortly before their first difference."""
    texts = [written(value) for value in values]
    begins = len(commonprefix(texts)) - most // 4
    return tuple(
        cut("\u2026" + text[begins:] if begins > 1 and len(text) > most else text, most) for text in texts
    )
