"""`orchestrate runs`: what this machine knows, the newest first."""

from __future__ import annotations

import argparse
import itertools

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.render.errors import block
from orchestrator.render.tables import RunRow, runs_table
from orchestrator.run.view import replay
from orchestrator.store import runs
from orchestrator.store.reader import events_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=options.lines, metavar="N", help="only the newest N (default: all)")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    rows: list[RunRow] = []
    damaged: list[OrchestrateError] = []
    for folder in itertools.islice(runs(), arguments.n):
        try:
            view = replay(events_of(folder))
            rows.append(RunRow(folder.read_plan(), view, folder.has_keeper()))
        except OrchestrateError as error:
            damaged.append(error)
    (facts if arguments.json else say)(*runs_table(rows, json=arguments.json, width=width()))
    if not rows and not damaged and arguments.n != 0 and not arguments.json:
        tell("no runs yet; orchestrate launch starts one")
    for damage in damaged:
        tell(*block(damage.what, damage.why, damage.hint, word="warning"))
    return ExitStatus.OK
