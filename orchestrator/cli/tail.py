"""`orchestrate tail`: any run, live or past; takes over one whose keeper is gone."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING

from orchestrator.cli.args import options, readings
from orchestrator.errors import ExitStatus

if TYPE_CHECKING:
    from orchestrator.render import Look

SUMMARY = "show the logs of a run, live or past; take over a run whose keeper is gone"
_LAST = 100  # lines of each log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.task(parser, "only this task's lines")
    parser.add_argument(
        "-n",
        type=readings.lines,
        metavar="N",
        help="of each log, begin with its last N lines (default: 100, with --since all)",
    )
    parser.add_argument("--no-follow", action="store_true", help="print what is there now and return")
    parser.add_argument(
        "--since",
        type=readings.since,
        default=0.0,
        metavar="TIME",
        help="only lines since then: 10m (ago), or a date",
    )
    parser.add_argument(
        "--notes", action="store_true", help="how the run was started, too: notes, phases, hosts"
    )
    parser.add_argument("--timestamps", action="store_true", help="show the time of each line")
    folding = parser.add_mutually_exclusive_group()
    folding.add_argument("--raw", action="store_true", help="every line of every task: --fold none")
    options.fold(folding)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk import watch
    from orchestrator.cli.desk.asking import adopt
    from orchestrator.cli.desk.finding import find_run, is_over
    from orchestrator.cli.desk.watch import BEHIND
    from orchestrator.launching.start import wanted_tasks
    from orchestrator.render import choose
    from orchestrator.store import RunReader

    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    wanted = wanted_tasks(arguments.task, plan, f"run {folder.run}")
    ended = is_over(folder)
    if not ended and not arguments.no_follow:
        adopt(folder)  # does nothing when it has a keeper
    look = _look(arguments, wanted)
    lines = arguments.n if arguments.n is not None else math.inf if arguments.since else _LAST
    last = None if math.isinf(lines) else int(lines)
    behind = BEHIND if sys.stdout.isatty() and not arguments.json else None
    renderer = choose(sys.stdout, arguments.json, sys.stderr, look)
    reader = RunReader(
        folder,
        wanted=look.wanted,
        last=last,
        drop_behind=behind,
        blocks=renderer.takes_blocks,
    )
    if arguments.no_follow and not ended:
        try:
            for stamped in reader.poll():
                renderer.handle(stamped)
        finally:
            renderer.close()
        return int(ExitStatus.OK)
    return watch.look(folder, reader, renderer)


def _look(arguments: argparse.Namespace, wanted: set[str]) -> Look:
    from orchestrator.model import Fold
    from orchestrator.render import Look

    return Look(
        fold=Fold(arguments.fold) if arguments.fold else Fold.NONE if arguments.raw else None,
        timestamps=arguments.timestamps,
        wanted=lambda task: not wanted or task in wanted,
        since=arguments.since,
        brief=not arguments.notes,
    )
