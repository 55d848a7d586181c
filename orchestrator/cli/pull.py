"""`orchestrate pull`: copy what a run's training wrote from its hosts into a local folder."""

import argparse
from pathlib import Path

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import bars, say
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.requests import PullRequest, make
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.pull import fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    text = "a path or pattern (*, ?) in the work folder, or an absolute one (default: all that tasks wrote)"
    parser.add_argument("paths", nargs="*", metavar="PATH", help=text)
    which = parser.add_mutually_exclusive_group()
    text = "a task or host (default: the chief, or worker/0)"
    which.add_argument("--from", dest="source", metavar="worker/0", help=text)
    options.flag(which, "--all", "from every host, each into a folder named after it", dest="all_hosts")
    parser.add_argument("--to", metavar="DIR", help="the folder to write to (default: ./RUN)")


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    filled: list[Path] = []
    try:
        with bars(json=False) as emit:
            fetch(folder, make(PullRequest, vars(arguments)), person, emit, filled.append)
    finally:
        say(*map(str, filled))
    return ExitStatus.OK
