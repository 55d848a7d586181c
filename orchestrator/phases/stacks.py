"""What the nodes say of where tasks stand: read, folded, worded as a whole, and kept in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import stacks
from orchestrator.fleet import Reply
from orchestrator.model import RunPlan, TaskId
from orchestrator.store import RunFolder


@dataclass(frozen=True)
class Taken:
    """The stacks of a run's tasks, at one moment."""

    finding: stacks.Finding
    said: str  # the same in one line
    missing: Mapping[str, str]  # host -> why it gave none
    file: Path
    tasks: Sequence[Mapping[str, Any]]  # what the nodes said, each with its host


def keep(
    folder: RunFolder,
    plan: RunPlan,
    good: Mapping[str, Reply],
    missing: Mapping[str, str],
    steps: Mapping[str, int | None],
    *,
    hang: bool,
) -> Taken:
    """Judge what the nodes have answered, and keep the whole of it. Raise OSError without room for it."""
    at = time.time()
    told = [{**task, "host": host} for host, reply in good.items() for task in reply.result["tasks"]]
    told.sort(key=lambda task: (TaskId.parse(task["task"]), task["attempt"]))
    stands = [
        stacks.stand(task["task"], task["host"], task["processes"], steps.get(task["task"])) for task in told
    ]
    finding = stacks.find(stands, plan.completion)
    said = stacks.sentence(finding, hang=hang)
    head = f"run {plan.run}, {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(at))}\n{said}\n"
    text = head + "\n".join(_whole(finding, told, missing)) + "\n"
    return Taken(finding, said, missing, folder.write_stacks(at, text), told)


def _whole(
    finding: stacks.Finding, told: Sequence[Mapping[str, Any]], missing: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"no stacks from {host}: {why}" for host, why in missing.items())
    yield ""
    yield from stacks.folded(finding)
    for task in told:
        yield f"\n==== {task['task']} on {task['host']}, attempt {task['attempt']}"
        for process in task["processes"]:
            yield from _process(process)
        if task["more"]:
            yield f"---- and {task['more']} more processes"


def _process(process: Mapping[str, Any]) -> Iterator[str]:
    waits = f", waits in {process['waits']}" if process["waits"] else ""
    taken = f", by {process['how']}" if process["text"] else f", no stacks: {process['why'] or 'no Python'}"
    yield (
        f"---- pid {process['pid']} {process['argv0']}: state {process['state']}{waits},"
        f" {process['cpu']:.1f} s of CPU{taken}"
    )
    if process["text"]:
        yield process["text"].rstrip("\n")
