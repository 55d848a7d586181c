"""`orchestrate status`: what the nodes say of a run's tasks, whoever keeps it."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrator.cli.finding import find_run
from orchestrator.cli.logins import logins
from orchestrator.errors import ExitStatus
from orchestrator.model import RunPlan
from orchestrator.render.tables import status_table
from orchestrator.store.reader import events_of
from orchestrator.view import replay


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    states, unreachable = ask_nodes(plan)
    view = replay(events_of(folder))
    for line in status_table(plan, view, states, unreachable, kept=folder.has_keeper(), json=arguments.json):
        print(line)
    return int(ExitStatus.CLUSTER if len(unreachable) == len(plan.hosts) else ExitStatus.OK)


def ask_nodes(plan: RunPlan) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, str]]:
    """The tasks' states on the nodes, by (attempt, task), and why the other hosts gave none."""
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet

    fleet = Fleet(connectors(logins(plan.hosts)), lambda _frame: None)
    try:
        bad = fleet.connect(plan.hosts)
        answers = fleet.ask("states", lambda _: {"run": plan.run})
    finally:
        fleet.close()
    states = {
        (task["attempt"], task["task"]): task
        for reply in answers.good.values()
        for run in reply.result["runs"]
        for task in run["tasks"]
    }
    said = {
        name: f"{error.what}: {error.why}" if error.why else error.what
        for name, error in {**bad, **answers.bad}.items()
    }
    return states, said
