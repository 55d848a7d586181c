"""`orchestrate runs`: the runs recorded on this machine, the newest at the bottom."""

import argparse
import time

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.render.errors import block
from orchestrator.render.tables import RunRow, refused, runs_table
from orchestrator.report.compare import differences, facts_of, shown
from orchestrator.store import find, runs
from orchestrator.store.standing import standing
from orchestrator.text import count
from orchestrator.verbs.finding import unknown

_NEWEST = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"only the newest N, or `all` (default: {_NEWEST}; with --json all)"
    parser.add_argument("-n", type=options.lines, default=-1, metavar="N", help=text)
    options.flag(parser, "--all", "all runs, including refused launches")
    text = "show what differs between two runs: code, packages, hosts, environment, data, options, outcome"
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help=text)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.diff:
        return _diff(arguments.diff, json=arguments.json)
    everything = arguments.all or arguments.json
    most = (None if everything else _NEWEST) if arguments.n == -1 else arguments.n
    rows: list[RunRow] = []
    folded = older = 0
    damaged: list[OrchestrateError] = []
    for folder in runs():
        try:
            row = RunRow(folder.read_plan(), standing(folder)[0], folder.has_keeper())
        except OrchestrateError as error:
            damaged.append(error)
            continue
        if refused(row) and not everything:
            folded += 1
        elif most is None or len(rows) < most:
            rows.append(row)
        else:
            older += 1
    lines = runs_table(rows[::-1], json=arguments.json, width=width(), now=time.time())
    (facts if arguments.json else say)(*lines)
    hidden = [count(older, "older run")] if older else []
    hidden += [count(folded, "refused launch", "refused launches")] if folded else []
    if hidden and not arguments.json:
        tell(f"not shown: {', '.join(hidden)}; `orchestrate runs --all` lists all")
    elif not (rows or damaged or hidden or arguments.json):
        tell("no runs yet; orchestrate launch starts one")
    for damage in damaged:
        tell(*block(damage.what, damage.why, damage.hint, word="warning"))
    return ExitStatus.OK


def _diff(names: list[str], *, json: bool) -> int:
    folders = []
    for word in names:
        if (folder := find(word)) is None:
            raise unknown(word, "where --diff reads them")
        folders.append(folder)
    first, second = folders
    changes = differences([facts_of(first), facts_of(second)])
    lines = shown((first.run, second.run), changes, json=json, width=width())
    (facts if json else say)(*lines)
    return ExitStatus.OK
