"""`orchestrate stacks`: where the tasks of a run stand now, whoever keeps it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.errors import ExitStatus, HostError, RunError, SeveralErrors, UsageError
from orchestrator.node.base.fault import reason

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.model import RunPlan, TaskId
    from orchestrator.phases.hang import RunStacks

SUMMARY = "show where a run's tasks stand: their Python stacks, equal ones folded, the odd one named"
_SECONDS = 45.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.task(parser, "only this task")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk.finding import find_run
    from orchestrator.cli.desk.history import history
    from orchestrator.phases.hang import keep
    from orchestrator.run.stacks import living
    from orchestrator.run.view import replay

    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    view = replay(history(folder))
    hosts = _hosts(plan, arguments.task)
    if view.ended is not None and not view.ended.unproven:
        raise UsageError(
            f"run {plan.run} has ended: no task is running",
            why=view.ended.cause or "it succeeded",
            hint=f"`orchestrate tail {plan.run}` shows its logs",
        )
    good, bad = _ask(plan, hosts, [str(task) for task in arguments.task] or None)
    if not good:
        raise SeveralErrors(bad.values())
    missing = {name: error.in_one_line for name, error in bad.items()}
    if not any(living(task) for reply in good.values() for task in reply.tasks):
        but = f"; {', '.join(missing)} could not be asked" if missing else ""
        raise UsageError(
            f"no task of run {plan.run} is alive",
            why=f"the nodes know of none{but}",
            hint=f"`orchestrate status {plan.run}` says what became of them",
        )
    steps = {task.task: task.step for task in view.tasks.values()}
    try:
        taken = keep(folder, plan, good, missing, steps, hang=False)
    except OSError as error:
        raise RunError(
            f"the stacks cannot be kept in {folder.stacks}",
            why=reason(error),
            hint="make room on this machine",
        ) from error
    if arguments.json:
        facts(_facts(plan, taken))
    else:
        say(*_shown(taken))
    return int(ExitStatus.CLUSTER if missing else ExitStatus.OK)


def _hosts(plan: RunPlan, tasks: list[TaskId]) -> set[str]:
    """The hosts of some tasks, or all; raise UsageError for a task that the run does not have."""
    known = {spec.id: spec.host for spec in plan.tasks}
    for task in tasks:
        if task not in known:
            raise UsageError(
                f"run {plan.run} has no {task}", why=f"its tasks are {', '.join(map(str, known))}"
            )
    return {known[task] for task in tasks or known}


def _ask(
    plan: RunPlan, hosts: set[str], tasks: list[str] | None
) -> tuple[Mapping[str, wire.StacksOf], dict[str, HostError]]:
    """Over connections of our own: the run's keeper may be on another machine, or gone."""
    from orchestrator import wire
    from orchestrator.cli.desk.asking import asking

    wanted = tuple(host for host in plan.hosts if host.name in hosts)
    with asking(wanted) as (fleet, bad):
        answers = fleet.ask(wire.Stacks(run=plan.run, tasks=tasks), timeout=_SECONDS)
    return answers.good, {**bad, **answers.bad}


def _shown(taken: RunStacks) -> list[str]:
    from orchestrator.run.stacks import folded

    for host, why in taken.missing.items():
        tell(f"warning: no stacks from {host}: {why}")
    return [taken.said, "", *folded(taken.finding), "", f"all of it: {taken.file}"]


def _facts(plan: RunPlan, taken: RunStacks) -> str:
    import json

    import msgspec

    facts = {
        "run": plan.run,
        "found": taken.said,
        "odd": [one.task for one in taken.finding.odd],
        "groups": [
            {
                "tasks": [one.task for one in alike],
                "stopped": alike[0].stopped,
                "frames": [str(frame) for frame in alike[0].frames],
                "why": alike[0].why,
            }
            for alike in taken.finding.groups
        ],
        "missing": dict(taken.missing),
        "file": str(taken.file),
        "tasks": [{**msgspec.to_builtins(task), "host": host} for host, task in taken.tasks],
    }
    return json.dumps(facts)
