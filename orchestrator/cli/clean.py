"""`orchestrate clean`: kill leftover processes of ended runs on the hosts, and remove old files."""

import argparse
import sys

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.render.clean import lines
from orchestrator.render.errors import report
from orchestrator.requests import CleanRequest
from orchestrator.verbs.clean import clean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.hosts(parser)
    text = "remove folders that have been unused for longer than this: 12h, 7d (default: 30d)"
    parser.add_argument("--older-than", type=options.age, metavar="AGE", help=text)
    options.flag(parser, "--work", "also remove working folders, with checkpoints and other output")
    options.flag(parser, "--yes", "confirm --work, which cannot be undone")
    options.flag(parser, "--dry-run", "show what would be done, without doing it")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    request = request_of(CleanRequest, arguments, person)
    if request.work and not (arguments.yes or request.dry_run):
        hint = "`--work --dry-run` shows what would be removed; `--work --yes` removes it"
        raise UsageError("--work deletes checkpoints and whatever else tasks wrote", hint=hint)
    done = clean(request, person)
    (facts if arguments.json else say)(*lines(done, json=arguments.json))
    if done.unreachable and not arguments.json:
        report(SeveralErrors(done.unreachable.values()), sys.stderr)
    return done.status
