"""`orchestrate runs`: what this machine knows, the newest first."""

from __future__ import annotations

import argparse
import itertools
import math
from typing import TYPE_CHECKING

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import ExitStatus, OrchestrateError

if TYPE_CHECKING:
    from orchestrator.render.tables import DamagedRow, RunRow
    from orchestrator.store import RunFolder

SUMMARY = "list the runs this machine knows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", type=readings.lines, default=math.inf, metavar="N", help="only the newest N (default: all)"
    )
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.render.errors import block
    from orchestrator.render.tables import DamagedRow, runs_table
    from orchestrator.store import runs

    last = None if math.isinf(arguments.n) else int(arguments.n)
    rows = [_row(folder) for folder in itertools.islice(runs(), last)]
    (facts if arguments.json else say)(*runs_table(rows, json=arguments.json, width=width()))
    if not rows and last != 0 and not arguments.json:
        tell("no runs yet; orchestrate launch starts one")
    for row in rows:
        if isinstance(row, DamagedRow) and not arguments.json:
            tell(*block(row.what, row.why, row.hint, word="warning"))
    return int(ExitStatus.OK)


def _row(folder: RunFolder) -> RunRow | DamagedRow:
    from orchestrator.render.tables import DamagedRow, RunRow
    from orchestrator.run.view import replay
    from orchestrator.store import RunReader

    reader = RunReader(folder, wanted=lambda _task: False)
    try:
        plan, view = folder.read_plan(), replay(list(reader.poll()))
    except OrchestrateError as error:
        return DamagedRow(folder.run, error.what, error.why, error.hint)
    return RunRow(plan=plan, view=view, kept=folder.has_keeper())
