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
    states, unreachable, keeper = ask_nodes(plan)
    view = replay(events_of(folder))
    here = folder.has_keeper()
    for line in status_table(plan, view, states, unreachable, kept=here, keeper=keeper, json=arguments.json):
        print(line)
    return int(
        ExitStatus.CLUSTER if len(unreachable) == len(plan.hosts) + len(plan.retired) else ExitStatus.OK
    )


def ask_nodes(plan: RunPlan) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, str], str]:
    """The tasks' states on the nodes, by (attempt, task), why the other hosts gave none, and who keeps it."""
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet

    hosts = (*plan.hosts, *plan.retired)
    fleet = Fleet(connectors(logins(hosts)), lambda _frame: None)
    try:
        bad = fleet.connect(hosts)
        answers = fleet.ask("states", lambda _: {"run": plan.run})
    finally:
        fleet.close()
    found = [(name, run) for name, reply in answers.good.items() for run in reply.result["runs"]]
    keepers = [run["keeper"] for _, run in found if run["keeper"]]
    states = {
        (task["attempt"], task["task"]): {**task, "host": name}
        for name, run in found
        for task in run["tasks"]
    }
    said = {
        name: f"{error.what}: {error.why}" if error.why else error.what
        for name, error in {**bad, **answers.bad}.items()
    }
    return states, said, next((str(keeper["who"]) for keeper in keepers if keeper["alive"]), "")
