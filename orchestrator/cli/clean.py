"""`orchestrate clean`: prove that the hosts hold nothing of ended runs, and remove what is old."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import SeveralErrors, UsageError

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.phases.clean import CleanOptions, KnownRuns
    from orchestrator.render.clean import Cleaning

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
    from orchestrator.phases.clean import CleanOptions, look
    from orchestrator.render.clean import lines
    from orchestrator.render.errors import report

    inventory = load(arguments.hosts)
    if arguments.work and not (arguments.yes or arguments.dry_run or sys.stdin.isatty()):
        raise UsageError(
            "--work deletes what tasks wrote and needs confirmation",
            why="stdin is not a terminal",
            hint="`--dry-run` shows what would go; `--yes` removes it without a question",
        )
    wanted = CleanOptions(arguments.older_than, arguments.work, dry=arguments.dry_run)
    with asking(inventory.hosts) as (fleet, unreachable):
        seen = look(fleet, unreachable)
        if wanted.work and not (wanted.dry or arguments.yes):
            wanted = _asked(fleet, seen, wanted)
        done = _clean(fleet, seen, wanted)
    (facts if arguments.json else say)(*lines(done, json=arguments.json, width=width()))
    if done.unreachable and not arguments.json:
        report(SeveralErrors(done.unreachable.values()), sys.stderr)
    return int(done.status)


def _clean(fleet: Fleet, seen: KnownRuns, wanted: CleanOptions) -> Cleaning:
    from orchestrator.phases.clean import clean
    from orchestrator.render.clean import Cleaning
    from orchestrator.store import prune

    kept = prune.kept()
    hosts, bad = clean(fleet, seen, kept, wanted)
    alive = seen.alive | kept
    here = prune.prune(alive, set(hosts), older=wanted.older, dry=wanted.dry)
    return Cleaning(hosts, {**seen.unreachable, **bad}, here, alive, wanted.work, wanted.dry)


def _asked(fleet: Fleet, seen: KnownRuns, wanted: CleanOptions) -> CleanOptions:
    """Return the options, without the working folders unless a person says yes to them."""
    import dataclasses

    from orchestrator.phases.clean import clean
    from orchestrator.render.clean import working
    from orchestrator.store import prune

    would = clean(fleet, seen, prune.kept(), dataclasses.replace(wanted, dry=True))[0]
    if not (said := working(would)):
        return wanted
    tell(f"{said}, would go, with the checkpoints and all else in them")
    sys.stderr.write("delete them for good? [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()  # the end of the input is not a yes
    return dataclasses.replace(wanted, work=answer.strip().lower() in {"y", "yes"})
