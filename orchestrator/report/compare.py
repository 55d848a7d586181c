"""Two runs side by side: what differs in outcome, options, code, data, packages, hosts and environment."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import TypeAlias

import msgspec

from orchestrator.events import Level
from orchestrator.groups import grouped
from orchestrator.model import Host
from orchestrator.render import fold
from orchestrator.render.grid import table
from orchestrator.render.tables import RunRow, state_of
from orchestrator.report.page import Rows, environment, rows, versions
from orchestrator.report.story import Story, points
from orchestrator.run.view import replay
from orchestrator.store import RunFolder
from orchestrator.store.known import read_lock
from orchestrator.store.reader import events_of
from orchestrator.text import count, cut, size, utf8

_SHOWN = 12  # differences of one area; JSON has all
_WIDEST = 48  # characters of a value,
_BEFORE = 12  # of them, where two long ones begin to differ
_CLOSE = 0.1  # of the larger one: numbers that differ by less are no news
_PINNED = re.compile(r"(?m)^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
_DERIVED = re.compile(r"TF_CONFIG|TMPDIR|ORCHESTRATE_.*|MASTER_.*")  # follow from hosts and their ports

Value: TypeAlias = str | float
Facts: TypeAlias = Mapping[str, Mapping[str, Value]]  # area -> name -> value
Difference: TypeAlias = tuple[str, str, Value | None, Value | None]  # None: it has none


def facts_of(folder: RunFolder) -> Facts:
    """All that is compared of a run; raise UsageError where it cannot be read."""
    plan, history, code, story = folder.read_plan(), events_of(folder), folder.read_code(), Story()
    view = replay(history)
    for stamped in history:
        story.tell(stamped.at, stamped.event)
    told = points(folder, story)
    paces = [point.pace for each in told.values() for point in each[-1] if point.pace is not None]
    losses = [point.loss for each in told.values() for point in each[-1][-1:] if point.loss is not None]
    ended, recipe = view.ended, plan.recipe
    lock = read_lock(plan.environment.name) if plan.environment else None
    lines = count(code.diff.count("\n"), "line")
    return {
        "outcome": {
            "state": state_of(RunRow(plan, view, folder.has_keeper())),
            **({"kind": ended.kind, "cause": ended.cause, "attempts": f"{ended.attempts}"} if ended else {}),
            **({"seconds": ended.seconds} if ended else {}),
            **({"steps a second": median(paces)} if paces else {}),
            **({"loss": median(losses)} if losses else {}),
        },
        "options": {
            "command": shlex.join(plan.command),
            "tasks": ", ".join(str(spec.id) for spec in plan.tasks),
            "setup": recipe.setup or "",
            "framework": recipe.framework,
            "Keras 2": "yes" if recipe.legacy_keras else "no",
            "restarts": f"{plan.restarts.most}",
            "hang_timeout": f"{plan.hang_timeout:g}",
            "preflight": "yes" if plan.admission.preflight else "no",
            "validation": plan.admission.validate_command or ("yes" if plan.admission.validate else "no"),
        },
        "code": {
            "folder": plan.cwd,
            "git": f"{code.commit[:12]} {code.branch}".strip(),
            "not committed": f"{lines} of diff, {_digest(code.diff)}" if code.diff else "",
            **(code.files or {"digest": plan.tree[:16]}),
        },
        "data": {
            "digest": plan.data_digest[:16],
            **dict.fromkeys(plan.data.paths if plan.data else (), "named"),
        },
        "packages": {**dict(_PINNED.findall(lock or "")), **_texts(versions(story))},
        "hosts": {
            "names": fold.names(host.name for host in plan.hosts),
            **_texts(
                rows((name, (text, host.name)) for host in plan.hosts for name, text in _host(host, story))
            ),
        },
        "preflight": {
            f"{check.host} {check.check}": f"{check.level}: {check.found}"
            for host in view.hosts.values()
            for check in host.checks
            if check.level is not Level.OK
        },
        "environment": {
            name: text for name, text in _texts(environment(plan)).items() if not _DERIVED.fullmatch(name)
        },
    }


def _host(host: Host, story: Story) -> Iterator[tuple[str, str]]:
    yield from (("address", host.address), ("python", host.python))
    if found := story.hosts.get(host.name):
        yield "CPU", f"{found.cpus} x {found.processor}"
        yield "memory", size(found.memory)
        yield "GPU", ", ".join(found.gpus)


def _texts(told: Rows) -> dict[str, str]:
    """Write each variable, package or part as one text: with who has it where not all have the same."""
    return {
        name: "; ".join(f"{value} ({who})" if len(values) > 1 else value for value, who in values)
        for name, values in told
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def differences(a: Facts, b: Facts) -> list[Difference]:
    """List what is not the same in both, in the order of the facts."""
    found = []
    for area, mine in a.items():
        for name in dict.fromkeys([*mine, *b[area]]):
            left, right = mine.get(name), b[area].get(name)
            if not _alike(left, right):
                found.append((area, name, left, right))
    return found


def _alike(left: Value | None, right: Value | None) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) <= _CLOSE * max(abs(left), abs(right))
    return (left or "") == (right or "")


def shown(runs: tuple[str, str], found: Sequence[Difference], *, json: bool, width: int | None) -> list[str]:
    """Word the differences as a table, or all of them as JSON."""
    if json:
        names = ("area", "what", "a", "b")
        facts = {
            "a": runs[0],
            "b": runs[1],
            "differences": [dict(zip(names, row, strict=True)) for row in found],
        }
        return [msgspec.json.encode(utf8(facts)).decode()]
    if not found:
        return [f"{runs[0]} and {runs[1]} differ in nothing that this machine knows of them"]
    lines: list[tuple[str, ...]] = []
    for area, of_area in grouped((area, rest) for area, *rest in found).items():
        cells = [(str(name), *_cells(left, right)) for name, left, right in of_area]
        more = [(f"and {len(cells) - _SHOWN} more", "--json has all", "")] if len(cells) > _SHOWN else []
        lines += [("" if number else area, *row) for number, row in enumerate([*cells[:_SHOWN], *more])]
    return table(("what", "differs", *runs), lines, width)


def _cells(*values: Value | None) -> tuple[str, ...]:
    """Cut two values to what a screen holds, from where they begin to differ."""
    texts = [f"{value:.4g}" if isinstance(value, float) else value or "-" for value in values]
    same = sum(1 for _ in takewhile(lambda pair: len(set(pair)) == 1, zip(*texts, strict=False))) - _BEFORE
    begins = same if same > 0 and max(map(len, texts)) > _WIDEST else 0
    return tuple(cut("\u2026" * (begins > 0) + text[begins:], _WIDEST) for text in texts)
