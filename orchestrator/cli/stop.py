"""`orchestrate stop`: ask the run's keeper, or become it, and watch until nothing remains."""

import argparse
import sys

from orchestrator.cli.args import options
from orchestrator.cli.desk import watch
from orchestrator.cli.desk.out import facts, tell
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.events import FailureKind, Stamped, encode
from orchestrator.model import Order
from orchestrator.render import Look, choose
from orchestrator.render.tables import state_word
from orchestrator.store import RunReader, runs
from orchestrator.verbs import Caller
from orchestrator.verbs.finding import find_run, view_of
from orchestrator.verbs.stop import reach_keeper


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.flag(parser, "--now", "send KILL immediately, without waiting")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    order = Order.KILL if arguments.now else Order.STOP
    view, seen_bytes = view_of(folder, person)
    if (end := view.ended) is not None and not end.unproven:
        if arguments.json:
            facts(encode(Stamped(view.ended_at, end)))
        tell(f"run {folder.run} has already ended: {state_word(end.outcome)}")
        others = () if arguments.run else [other.run for other in runs() if other.has_keeper()]
        if others:
            tell(f"it was the newest; still running: {', '.join(others)}; orchestrate stop RUN")
        return ExitStatus.OK
    reader = RunReader(folder, shows=lambda _task: False, start=seen_bytes)
    with watch.Interrupts() as interrupts:
        reach_keeper(folder, order, seen_bytes, person)
        renderer = choose(sys.stdout, arguments.json, sys.stderr, Look(view=view))
        status = watch.own(folder, reader, renderer, interrupts, order)
    ended = view_of(folder, Caller())[0].ended
    if ended is not None and ended.unproven:
        return ExitStatus.CLUSTER
    # However the run ended: nothing remains, as requested.
    return status if ended is None or ended.kind is FailureKind.BUG else ExitStatus.OK
