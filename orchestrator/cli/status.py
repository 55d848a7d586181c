"""`orchestrate status`: the nodes' reports on a run's tasks, whichever machine keeps it."""

import argparse
import time

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, height, say, width
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.render.tables import machine_rows, machines_table, status_table
from orchestrator.verbs import inventory as inventories
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.status import survey_machines, survey_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.flag(parser, "--machines", "show who uses each host of the inventory")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.machines:
        return _machines(arguments)
    person = Person()
    report = survey_run(find_run(arguments.run, arguments.hosts, person), person)
    lines = status_table(report, json=arguments.json, now=time.time(), width=width(), height=height())
    (facts if arguments.json else say)(*lines)
    return ExitStatus.OK if report.answered else ExitStatus.CLUSTER


def _machines(arguments: argparse.Namespace) -> int:
    if arguments.run:
        raise UsageError("status --machines takes no run", hint="omit RUN: all runs are shown")
    person = Person()
    hosts = inventories.load(arguments.hosts, person).hosts
    machines = survey_machines(hosts, person)
    rows = [row for host in hosts for row in machine_rows(host.name, machines)]
    lines = machines_table(rows, json=arguments.json, now=time.time(), width=width(), height=height())
    (facts if arguments.json else say)(*lines)
    return ExitStatus.CLUSTER if len(machines.errors) == len(hosts) else ExitStatus.OK
