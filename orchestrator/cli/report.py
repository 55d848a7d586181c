"""`orchestrate report`: a run as one page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import say
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.report.page import write
from orchestrator.verbs.finding import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    text = "where to write it (default: report.html in the run's folder, whose path is printed)"
    parser.add_argument("-o", "--output", type=options.output, metavar="FILE", help=text)


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts, Person())
    say(str(write(folder, arguments.output and Path(arguments.output))))
    return ExitStatus.OK
