"""Several runs on one page: a line for each in every chart, their parameters, and other differences."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.model import RunPlan
from orchestrator.ranges import grouped
from orchestrator.render.tables import state_of
from orchestrator.report import page
from orchestrator.report.compare import Facts, differences, facts_of, texts, written
from orchestrator.report.curves import PACE, Point, charts, last
from orchestrator.report.page import Renewal, draw, parameters
from orchestrator.report.story import points, read
from orchestrator.store import RunFolder

_MOST = 12  # differences of one area
_ELSEWHERE = ("outcome", "files")  # areas that have a table of their own, or are too long


class _Run(NamedTuple):
    """A row of the table."""

    id: str
    label: str
    state: str
    seconds: float
    last: Mapping[str, float]


def write(folders: Sequence[RunFolder], to: Path | None = None) -> Path:
    """Write the page of one or several runs, by default into the first one's folder; return its path.

    Raise UsageError.
    """
    path = to or (folders[0].pages if len(folders) > 1 else folders[0].page)
    return page.write(page_of(folders, time.time()), path)


def page_of(folders: Sequence[RunFolder], now: float, live: Renewal | None = None) -> str:
    """Read these runs and return their page; raise UsageError if one cannot be read."""
    return _page(folders, now, live) if len(folders) > 1 else page.page(folders[0], now, live)


def _page(folders: Sequence[RunFolder], now: float, live: Renewal | None) -> str:
    lines, restarts = dict[str, list[Point]](), dict[str, list[float]]()
    rows, facts, given = list[_Run](), list[Facts](), list[dict[str, str]]()
    for folder, label in zip(folders, _labels(folders), strict=True):
        story = read(folder)
        curves = points(folder, story)
        began = story.view.began or story.plan.created
        lines[label], first = _line(story.plan, curves, began)
        restarts[label] = [at - began for at in story.restarts.get(first, ())]
        state = state_of(story.view, kept=story.kept)
        until = now if story.kept and not story.view.ended else story.last
        rows.append(_Run(folder.run, label, state, max(0.0, until - began), last(lines[label])))
        facts.append(facts_of(folder, story, curves))
        given.append(texts(parameters(story)))
    names = dict.fromkeys(name for row in rows for name in row.last)
    shown = {
        "runs": rows,
        "metrics": sorted(names, key=lambda name: (name != "step", name == PACE)),
        "charts": charts(lines, 0.0, restarts),
        "parameters": _parameters(given),
        "differences": list(_differences(facts)),
        "now": now,
        "live": live,
    }
    return draw("several.html", shown)


def metrics(folder: RunFolder) -> dict[str, float]:
    """Return the last value of each metric, as the page shows it; raise UsageError for an unreadable run."""
    story = read(folder)
    line, _ = _line(story.plan, points(folder, story), story.view.began or story.plan.created)
    return last(line)


def _labels(folders: Sequence[RunFolder]) -> list[str]:
    """Return a name for each run: its own, followed by its ID if another run has the same."""
    names = [folder.read_plan().name for folder in folders]
    count = Counter(names)
    return [
        name if name and count[name] == 1 else f"{name} {folder.run}".strip()
        for name, folder in zip(names, folders, strict=True)
    ]


def _line(plan: RunPlan, curves: Mapping[str, Sequence[Point]], began: float) -> tuple[list[Point], str]:
    """Return each metric of the first task that has it, at times since the run's start, and that task."""
    order = [str(spec.id) for spec in plan.tasks]
    tasks = sorted(curves, key=lambda task: order.index(task) if task in order else len(order))
    owners = {name: task for task in reversed(tasks) for point in curves[task] for name in point.values}
    line = [
        Point(point.at - began, point.step, values)
        for task in tasks
        for point in curves[task]
        if (values := {name: value for name, value in point.values.items() if owners[name] == task})
    ]
    return line, tasks[0] if tasks else ""


def _parameters(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that differ, with the value of each run, and those that all runs share."""
    values = {name: [run.get(name) for run in each] for given in each for name in given}
    return {
        "differ": {name: [value or "" for value in row] for name, row in values.items() if len(set(row)) > 1},
        "same": [(name, [(row[0], "")]) for name, row in values.items() if len(set(row)) == 1],
    }


def _differences(facts: Sequence[Facts]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the differences between runs: area, name, and the value of each run."""
    for area, rows in grouped((row.area, row) for row in differences(facts)).items():
        shown = () if area in _ELSEWHERE else rows[:_MOST]
        yield from ((area, name, list(map(written, values))) for _, name, values in shown)
        if len(rows) > _MOST and shown:
            yield area, f"and {len(rows) - _MOST} more: `orchestrate runs --diff` shows them", []
