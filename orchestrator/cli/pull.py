"""`orchestrate pull`: what a run's training wrote, from its hosts into a folder here."""

from __future__ import annotations

import argparse

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import say
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.requests import PullRequest, make
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.pull import fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="in its work folder, or absolute; may hold * and ? (default: all that was written there)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--from",
        dest="source",
        metavar="worker/0",
        help="a task or host (default: the chief, or worker/0)",
    )
    which.add_argument(
        "--all", dest="all_hosts", action="store_true", help="from every host, each into a folder of its name"
    )
    parser.add_argument("--to", metavar="DIR", help="where to (default: ./RUN)")


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    fetch(folder, make(PullRequest, vars(arguments)), person, lambda to: say(str(to)))
    return ExitStatus.OK
