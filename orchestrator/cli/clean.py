"""`orchestrate clean`: prove that the hosts hold nothing of ended runs, and remove what is old."""

from __future__ import annotations

import argparse
import sys

from orchestrator import wire
from orchestrator.cli.args import options
from orchestrator.cli.desk.asking import asking
from orchestrator.cli.desk.inventory import load
from orchestrator.cli.desk.out import facts, say
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.render.clean import Cleaning, lines
from orchestrator.render.errors import report
from orchestrator.store import prune

_SECONDS = 1800.0  # that removing many files from a network disk may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.hosts(parser)
    parser.add_argument(
        "--older-than",
        type=options.age,
        default=30 * 86_400.0,
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
    inventory = load(arguments.hosts)
    if arguments.work and not (arguments.yes or arguments.dry_run):
        hint = "`--work --dry-run` shows what would go; `--work --yes` removes it"
        raise UsageError("--work deletes checkpoints and whatever else tasks wrote", hint=hint)
    older, work, dry = arguments.older_than, arguments.work, arguments.dry_run
    with asking(inventory.hosts) as (fleet, unreachable):
        kept = prune.kept()
        looks = fleet.ask(wire.CleanLook())
        silent = {**unreachable, **looks.bad}
        alive = kept.union(*(reply.alive for reply in looks.good.values()))
        known = {run for reply in looks.good.values() for run in reply.known}
        questions = {
            name: wire.Clean(
                workdir=session.host.workdir,
                alive=sorted(alive),
                known=sorted(known),
                older=older,
                shared=not silent,  # who is silent may use code and working folders that others see, too
                work=work,
                dry=dry,
            )
            for name, session in fleet.sessions.items()
            if name not in silent
        }
        answers = fleet.ask(questions, timeout=_SECONDS)
    here = prune.prune(alive, set(answers.good), older=older, dry=dry)
    done = Cleaning(answers.good, {**silent, **answers.bad}, here, alive, work, dry)
    (facts if arguments.json else say)(*lines(done, json=arguments.json))
    if done.unreachable and not arguments.json:
        report(SeveralErrors(done.unreachable.values()), sys.stderr)
    return done.status
