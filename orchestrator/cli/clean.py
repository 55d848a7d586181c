"""`orchestrate clean`: prove that the hosts hold nothing of ended runs, and remove what is old."""

from __future__ import annotations

import argparse
import sys

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.text import duration

SUMMARY = "prove that the hosts hold nothing of ended runs, and remove what is old"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.hosts(parser)
    parser.add_argument(
        "--older-than",
        type=readings.age,
        default=30 * 86_400.0,
        metavar="AGE",
        help="remove folders that were unused for longer than this: 12h, 7d (default: 30d)",
    )
    parser.add_argument(
        "--work", action="store_true", help="also working folders: checkpoints and whatever else tasks wrote"
    )
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation before working folders are removed"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk.asking import asking
    from orchestrator.cli.desk.inventory import load
    from orchestrator.phases.clean import CleanOptions, clean
    from orchestrator.render.clean import Cleaning, lines
    from orchestrator.render.errors import report
    from orchestrator.store import prune

    inventory = load(arguments.hosts)
    if arguments.work and not (arguments.yes or arguments.dry_run or sys.stdin.isatty()):
        raise UsageError(
            "--work deletes what tasks wrote and needs confirmation",
            why="stdin is not a terminal",
            hint="`--dry-run` shows what would go; `--yes` removes it without a question",
        )
    work = arguments.work and (arguments.yes or arguments.dry_run or _confirm(arguments.older_than))
    wanted = CleanOptions(arguments.older_than, work, dry=arguments.dry_run)
    with asking(inventory.hosts) as (fleet, unreachable):
        hosts, bad, alive = clean(fleet, unreachable, prune.kept(), wanted)
    here = prune.prune(alive, set(hosts), older=wanted.older, dry=wanted.dry)
    done = Cleaning(hosts, bad, here, alive, wanted.work, wanted.dry)
    (facts if arguments.json else say)(*lines(done, json=arguments.json, width=width()))
    if done.unreachable and not arguments.json:
        report(SeveralErrors(done.unreachable.values()), sys.stderr)
    return int(done.status)


def _confirm(older: float) -> bool:
    """Return True if a person says yes to the end of working folders."""
    tell(
        f"working folders of ended runs, unused for {duration(older)}, would go, with the checkpoints in them"
    )
    sys.stderr.write("delete them for good? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}  # the end of the input is not a yes
