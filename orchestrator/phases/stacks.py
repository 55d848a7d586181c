"""What the nodes say of where tasks stand: read, folded, worded as a whole, and kept in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import wire
from orchestrator.model import RunPlan, TaskId
from orchestrator.planning.takeover import speaks_for
from orchestrator.run import stacks
from orchestrator.store import RunFolder


@dataclass(frozen=True)
class RunStacks:
    """The stacks of a run's tasks, at one moment."""

    finding: stacks.StackFinding
    said: str  # the same in one line
    missing: Mapping[str, str]  # host -> why it gave none
    file: Path
    tasks: Sequence[tuple[str, wire.TaskStacks]]  # what the nodes said, each with its host


def keep(
    folder: RunFolder,
    plan: RunPlan,
    good: Mapping[str, wire.StacksOf],
    missing: Mapping[str, str],
    steps: Mapping[str, int | None],
    *,
    hang: bool,
) -> RunStacks:
    """Judge what the nodes have answered, and keep the whole of it. Raise OSError without room for it."""
    at = time.time()
    told = [
        (host, task)
        for host, reply in good.items()
        for answered in reply.tasks
        if (task := stacks.living(answered)) is not None and speaks_for(plan, host, task.attempt, task.task)
    ]
    told.sort(key=lambda one: (TaskId.parse(one[1].task), one[1].attempt))
    stands = [stacks.stand(task.task, host, task.processes, steps.get(task.task)) for host, task in told]
    finding = stacks.find(stands, plan.completion)
    said = stacks.sentence(finding, hang=hang)
    head = f"run {plan.run}, {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(at))}\n{said}\n"
    text = head + "\n".join(_whole(finding, told, missing)) + "\n"
    return RunStacks(finding, said, missing, folder.write_stacks(at, text), told)


def _whole(
    finding: stacks.StackFinding, told: Sequence[tuple[str, wire.TaskStacks]], missing: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"no stacks from {host}: {why}" for host, why in missing.items())
    yield ""
    yield from stacks.folded(finding)
    for host, task in told:
        yield f"\n==== {task.task} on {host}, attempt {task.attempt}"
        for process in task.processes:
            yield from _process(process)
        if task.more:
            yield f"---- and {task.more} more processes"


def _process(process: wire.StackProcess) -> Iterator[str]:
    waits = f", waits in {process.waits}" if process.waits else ""
    taken = f", by {process.how}" if process.text else f", no stacks: {process.why or 'no Python'}"
    yield (
        f"---- pid {process.pid} {process.argv0}: state {process.state}{waits},"
        f" {process.cpu:.1f} s of CPU{taken}"
    )
    if process.text:
        yield process.text.rstrip("\n")
