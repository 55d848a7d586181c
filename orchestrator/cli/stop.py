"""`orchestrate stop`: ask the run's keeper, or become it, and watch until nothing is left."""

from __future__ import annotations

import argparse
import sys

from orchestrator.cli.args import options
from orchestrator.cli.desk import watch
from orchestrator.cli.desk.interrupts import Interrupts
from orchestrator.cli.desk.out import facts, tell
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.events import FailureKind, Stamped, encode
from orchestrator.render import Look, choose
from orchestrator.render.tables import state_word
from orchestrator.requests import StopRequest, make
from orchestrator.store import RunReader, runs
from orchestrator.verbs.finding import find_run, view_of
from orchestrator.verbs.stop import order_of, reach_keeper, stood


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument("--now", action="store_true", help="KILL at once, without waiting")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    want = order_of(make(StopRequest, vars(arguments)))
    view, known = stood(folder)
    if (end := view.ended) is not None and not end.unproven:
        if arguments.json:
            facts(encode(Stamped(view.ended_at, end)))
        tell(f"run {folder.run} is over already: {state_word(end.outcome)}")
        others = () if arguments.run else [other.run for other in runs() if other.has_keeper()]
        if others:
            tell(f"it was the newest; still running: {', '.join(others)}; orchestrate stop RUN")
        return ExitStatus.OK
    reader = RunReader(folder, wanted=lambda _task: False, start=known)
    with Interrupts() as interrupts:
        reach_keeper(folder, want, known, person)
        renderer = choose(sys.stdout, arguments.json, sys.stderr, Look(view=view))
        status = watch.own(folder, reader, renderer, interrupts, want)
    ended = view_of(folder, person).ended
    if ended is not None and ended.unproven:
        return ExitStatus.CLUSTER
    # However the run ended: nothing is left, which was the request.
    return status if ended is None or ended.kind is FailureKind.BUG else ExitStatus.OK
