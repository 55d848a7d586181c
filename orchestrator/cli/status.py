"""`orchestrate status`: what the nodes say of a run's tasks, whoever keeps it."""

from __future__ import annotations

import argparse
import time

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, width
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.render.tables import MachineRow, machine_rows, machines_table, status_table
from orchestrator.verbs import inventory as inventories
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.status import survey_machines, survey_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument("--machines", action="store_true", help="show who uses each host of the inventory")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.machines:
        return _machines(arguments)
    person = Person()
    found = survey_run(find_run(arguments.run, arguments.hosts, person), person)
    lines = status_table(
        found.plan,
        found.view,
        found.states,
        found.unreachable,
        kept=found.kept,
        keeper=found.keeper,
        json=arguments.json,
        vitals=found.vitals,
        now=time.time(),
        width=width(),
    )
    (facts if arguments.json else say)(*lines)
    return ExitStatus.OK if found.answered else ExitStatus.CLUSTER


def _machines(arguments: argparse.Namespace) -> int:
    if arguments.run:
        raise UsageError("status --machines takes no run", hint="leave it out: all runs are shown")
    person = Person()
    hosts = inventories.load(arguments.hosts, person).hosts
    found = survey_machines(hosts, person)
    rows: list[MachineRow] = []
    for name in (host.name for host in hosts):
        if name in found.errors:
            rows.append(MachineRow(name, said=found.errors[name]))
        else:
            states, gpus = found.states[name], found.gpus[name]
            rows += machine_rows(name, states, gpus, found.progress, found.ahead.get(name, 0.0))
    lines = machines_table(rows, json=arguments.json, now=time.time(), width=width())
    (facts if arguments.json else say)(*lines)
    return ExitStatus.CLUSTER if len(found.errors) == len(hosts) else ExitStatus.OK
