"""`orchestrate runs`: what this machine knows, the newest first."""

from __future__ import annotations

import argparse
import itertools

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import ExitStatus, OrchestrateError, UsageError
from orchestrator.render.errors import block
from orchestrator.render.tables import RunRow, runs_table
from orchestrator.report.compare import differences, facts_of, shown
from orchestrator.run.view import replay
from orchestrator.store import find, runs
from orchestrator.store.reader import events_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=options.lines, metavar="N", help="only the newest N (default: all)")
    text = "show what differs between two runs: code, packages, hosts, environment, data, options, outcome"
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help=text)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.diff:
        return _diff(arguments.diff, json=arguments.json)
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


def _diff(words: list[str], *, json: bool) -> int:
    folders = []
    for word in words:
        if (folder := find(word)) is None:
            raise UsageError(f"there is no run {word!r} here", hint="`orchestrate runs` lists what is known")
        folders.append(folder)
    first, second = folders
    found = differences(facts_of(first), facts_of(second))
    lines = shown((first.run, second.run), found, json=json, width=width())
    (facts if json else say)(*lines)
    return ExitStatus.OK
