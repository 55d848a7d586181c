"""`orchestrate clean`: prove that the hosts hold nothing of ended runs, and remove what is old."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import config
from orchestrator.cli.logins import logins
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.render.clean import Cleaning, lines, working
from orchestrator.store import prune

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.phases.clean import Seen, Wish


def main(arguments: argparse.Namespace) -> int:
    inventory = config.load(Path(arguments.hosts or "hosts.toml"))
    if arguments.work and not (arguments.yes or arguments.dry_run or sys.stdin.isatty()):
        raise UsageError(
            "--work removes what tasks wrote, and there is nobody to be asked",
            why="stdin is no terminal",
            hint="--dry-run shows what would go; --yes removes it without a question",
        )
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet
    from orchestrator.phases.clean import Wish, look

    wish = Wish(arguments.older_than, arguments.keep_size, arguments.work, arguments.dry_run)
    fleet = Fleet(connectors(logins(inventory.hosts)), lambda _frame: None)
    try:
        seen = look(fleet, fleet.connect(inventory.hosts))
        if wish.work and not (wish.dry or arguments.yes):
            wish = _asked(fleet, seen, wish)
        done = _clean(fleet, seen, wish)
    finally:
        fleet.close()
    for line in lines(done, json=arguments.json):
        print(line)
    if done.unreachable and not arguments.json:
        from orchestrator.render.errors import report

        report(SeveralErrors(done.unreachable.values()), sys.stderr)
    return int(done.status)


def _clean(fleet: Fleet, seen: Seen, wish: Wish) -> Cleaning:
    from orchestrator.phases.clean import clean

    kept = prune.kept()
    hosts, bad = clean(fleet, seen, kept, wish)
    here = prune.prune(
        seen.alive | kept, set(hosts), older=wish.older, keep_bytes=wish.keep_bytes, dry=wish.dry
    )
    return Cleaning(hosts, {**seen.unreachable, **bad}, here, seen.alive | kept, wish.work, wish.dry)


def _asked(fleet: Fleet, seen: Seen, wish: Wish) -> Wish:
    """The wish, without the working folders unless a person says yes to them."""
    from orchestrator.phases.clean import clean

    would = clean(fleet, seen, prune.kept(), dataclasses.replace(wish, dry=True))[0]
    if not (said := working(would)):
        return wish
    print(f"{said}, would go, with the checkpoints and all else in them", file=sys.stderr)
    print("remove them for ever? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()  # an end of the input is no yes
    return dataclasses.replace(wish, work=answer.strip().lower() in {"y", "yes"})
