"""`orchestrate rehearse`: the same preflight and launch, against private SSH servers on this machine."""

import argparse
import os
import sys

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import tell
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.cli.desk.watch import Interrupts, follow
from orchestrator.errors import ExitStatus
from orchestrator.model import Inventory
from orchestrator.rehearsal import Cluster
from orchestrator.rehearsal.watcher import MARK
from orchestrator.requests import LaunchRequest
from orchestrator.verbs.launch import launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "rehearse [-n N] [options] [-- COMMAND ...]")
    text = "number of hosts (default: 4)"
    parser.add_argument("-n", type=options.whole(1, 64), default=4, metavar="N", help=text)
    parser.add_argument("--python", help="the Python for the tasks (default: the one that runs orchestrate)")
    options.launching(parser)


def main(arguments: argparse.Namespace) -> int:
    with (
        Cluster(arguments.n, python=arguments.python or sys.executable) as cluster,
        Interrupts() as interrupts,
    ):
        os.environ[MARK] = str(cluster.folder)  # a keeper owns it, and ends with the hosts if we are killed
        person, inventory = Person(), Inventory(cluster.hosts, source="the rehearsal")
        request = request_of(LaunchRequest, arguments, person, inventory=inventory)
        folder = launch(request, person, arguments.task)
        status = follow(folder, arguments, interrupts)
    if status == ExitStatus.CLUSTER and arguments.python is None:
        tell("the tasks use the Python that runs orchestrate; name another with --python")
    tell("the rehearsal's servers and folders are removed; the logs are kept, as for any run")
    return status
