"""`orchestrate stop`: ask the run's keeper, or become it, and watch until nothing is left."""

from __future__ import annotations

import argparse
import shlex
import sys
import time

from orchestrator.cli.args import options
from orchestrator.cli.desk import watch
from orchestrator.cli.desk.asking import adopt
from orchestrator.cli.desk.finding import find_run, view_of
from orchestrator.cli.desk.interrupts import Interrupts
from orchestrator.cli.desk.out import facts, tell
from orchestrator.errors import ExitStatus, OrchestrateError, RunError
from orchestrator.events import FailureKind, RunEnded, Stamped, encode
from orchestrator.model import Order
from orchestrator.render import Look, choose
from orchestrator.render.tables import state_word
from orchestrator.run.view import View
from orchestrator.store import RunFolder, RunReader, runs
from orchestrator.store.standing import standing

_AGAIN = 0.05  # seconds
_DEAF = 15.0  # seconds for a keeper to answer, or to go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument("--now", action="store_true", help="KILL at once, without waiting")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    want = Order.KILL if arguments.now else Order.STOP
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
        reach_keeper(folder, want, known)
        renderer = choose(sys.stdout, arguments.json, sys.stderr, Look(view=view))
        status = watch.own(folder, reader, renderer, interrupts, want)
    ended = view_of(folder).ended
    if ended is not None and ended.unproven:
        return ExitStatus.CLUSTER
    # However the run ended: nothing is left, which was the request.
    return status if ended is None or ended.kind is FailureKind.BUG else ExitStatus.OK


def stood(folder: RunFolder) -> tuple[View, int]:
    """Return the run's state and the bytes of events before it; nothing where they are damaged."""
    try:
        return standing(folder)
    except OrchestrateError:
        return View(), 0


def reach_keeper(folder: RunFolder, want: Order, known: int) -> None:
    """Ask the run's keeper, or become it; neither for a run that ended behind the first `known` bytes.

    Raise RunError for a keeper that does not answer.
    """
    deadline = time.monotonic() + _DEAF
    while not folder.ask_keeper(want):
        if time.monotonic() > deadline:
            raise RunError(
                f"the keeper of run {folder.run} is alive but does not answer",
                why=f"{folder.control} has not led to it for {_DEAF:.0f} s",
                hint=f"`fuser -k {shlex.quote(str(folder.lock))}` on its machine ends it; then try again",
            )
        # A keeper writes the end before it goes.
        since = RunReader(folder, wanted=lambda _task: False, start=known)
        if not folder.has_keeper() and any(isinstance(one.event, RunEnded) for one in since.poll()):
            return
        # Whoever is faster than we are may have become its keeper, without knowing of a stop.
        if adopt(folder, stop=want):
            return
        time.sleep(_AGAIN)
