"""`orchestrate stacks`: where the tasks of a run stand now, whoever keeps it."""

from __future__ import annotations

import argparse
import json

import msgspec

from orchestrator import wire
from orchestrator.cli.args import options
from orchestrator.cli.desk.asking import asking
from orchestrator.cli.desk.finding import find_run, view_of
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.errors import ExitStatus, SeveralErrors, UsageError
from orchestrator.phases.hang import RunStacks, keep
from orchestrator.run.stacks import folded, living
from orchestrator.store import RunFolder

_SECONDS = 45.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    taken = take(folder)
    if arguments.json:
        facts(_facts(folder.run, taken))
    else:
        for host, why in taken.missing.items():
            tell(f"warning: no stacks from {host}: {why}")
        say(taken.said, "", *folded(taken.finding), "", f"all of it: {taken.file}")
    return ExitStatus.CLUSTER if taken.missing else ExitStatus.OK


def take(folder: RunFolder) -> RunStacks:
    """Take the stacks of a run's tasks; raise UsageError when none is alive."""
    plan = folder.read_plan()
    view = view_of(folder)
    # Over connections of our own: the run's keeper may be on another machine, or gone.
    with asking(plan.hosts) as (fleet, unreached):
        answers = fleet.ask(wire.Stacks(run=plan.run), timeout=_SECONDS)
    good, bad = answers.good, {**unreached, **answers.bad}
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
    return keep(folder, plan, good, missing, steps, hang=False)


def _facts(run: str, taken: RunStacks) -> str:
    facts = {
        "run": run,
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
