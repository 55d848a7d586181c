"""`orchestrate stacks`: where the tasks of a run stand now, whoever keeps it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from orchestrator import stacks
from orchestrator.cli.finding import find_run
from orchestrator.cli.logins import logins
from orchestrator.errors import ExitStatus, HostError, RunError, SeveralErrors, UsageError
from orchestrator.fleet import Reply
from orchestrator.model import RunPlan, TaskId
from orchestrator.phases.stacks import Taken, keep
from orchestrator.store.reader import events_of
from orchestrator.text import plain
from orchestrator.view import replay

_SECONDS = 45.0


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    view = replay(events_of(folder))
    hosts = _hosts(plan, arguments.task)
    if view.ended is not None and not view.ended.unproven:
        raise UsageError(
            f"run {plan.run} is over: none of its tasks stands anywhere",
            why=view.ended.cause or "it succeeded",
            hint=f"orchestrate tail {plan.run} shows its logs",
        )
    good, bad = _ask(plan, hosts, [str(task) for task in arguments.task] or None)
    if not good:
        raise SeveralErrors(bad.values())
    missing = {name: f"{error.what}: {error.why}" if error.why else error.what for name, error in bad.items()}
    if not any(reply.result["tasks"] for reply in good.values()):
        but = f"; {', '.join(missing)} could not be asked" if missing else ""
        raise UsageError(
            f"no task of run {plan.run} is alive",
            why=f"the nodes know of none{but}",
            hint=f"orchestrate status {plan.run} says what became of them",
        )
    steps = {task.task: task.step for task in view.tasks.values()}
    try:
        taken = keep(folder, plan, good, missing, steps, hang=False)
    except OSError as error:
        raise RunError(
            f"the stacks cannot be kept in {folder.stacks}",
            why=error.strerror or str(error),
            hint="make room on this machine",
        ) from error
    print(_facts(plan, taken) if arguments.json else "\n".join(map(plain, _shown(taken))))
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
) -> tuple[Mapping[str, Reply], dict[str, HostError]]:
    """Over connections of our own: the run's keeper may be on another machine, or gone."""
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet

    wanted = tuple(host for host in plan.hosts if host.name in hosts)
    fleet = Fleet(connectors(logins(wanted)), lambda _frame: None)
    try:
        bad = fleet.connect(wanted)
        answers = fleet.ask(
            "stacks", lambda _: {"run": plan.run, "attempt": None, "tasks": tasks}, timeout=_SECONDS
        )
    finally:
        fleet.close()
    return answers.good, {**bad, **answers.bad}


def _shown(taken: Taken) -> list[str]:
    for host, why in taken.missing.items():
        print(plain(f"warning: no stacks from {host}: {why}"), file=sys.stderr)
    return [taken.said, "", *stacks.folded(taken.finding), "", f"all of it: {taken.file}"]


def _facts(plan: RunPlan, taken: Taken) -> str:
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
        "tasks": list(taken.tasks),
    }
    return json.dumps(facts)
