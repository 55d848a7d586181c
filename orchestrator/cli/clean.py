"""`orchestrate clean`: prove that the hosts hold nothing of ended runs, and remove what is old."""

from __future__ import annotations

import argparse
import sys

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say
from orchestrator.cli.desk.person import Person
from orchestrator.cli.desk.request import request_of
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.render.clean import lines
from orchestrator.render.errors import report
from orchestrator.requests import CleanRequest
from orchestrator.verbs.clean import clean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.hosts(parser)
    parser.add_argument(
        "--older-than",
        type=options.age,
        metavar="AGE",
        help="remove folders that were unused for longer than this: 12h, 7d (default: 30d)",
    )
    parser.add_argument(
        "--work", action="store_true", help="also working folders: checkpoints and whatever else tasks wrote"
    )
    parser.add_argument("--yes", action="store_true", help="with --work: remove them, which cannot be undone")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    request = request_of(CleanRequest, arguments, person)
    if request.work and not (arguments.yes or request.dry_run):
        hint = "`--work --dry-run` shows what would go; `--work --yes` removes it"
        raise UsageError("--work deletes checkpoints and whatever else tasks wrote", hint=hint)
    done = clean(request, person)
    (facts if arguments.json else say)(*lines(done, json=arguments.json))
    if done.unreachable and not arguments.json:
        report(SeveralErrors(done.unreachable.values()), sys.stderr)
    return done.status
