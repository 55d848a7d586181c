"""`orchestrate stop`: ask the run's keeper, or become it, and watch until nothing is left."""

from __future__ import annotations

import argparse
import sys
import time

from orchestrator.cli import keeping, watch
from orchestrator.cli.finding import find_run
from orchestrator.errors import ExitStatus
from orchestrator.events import RunEnded
from orchestrator.render import choose
from orchestrator.render.tables import state_word
from orchestrator.store import RunReader, runs
from orchestrator.store.reader import events_of

_AGAIN = 0.05  # seconds


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    want = "kill" if arguments.now else "stop"
    history = events_of(folder)
    over = next((s.event for s in reversed(history) if isinstance(s.event, RunEnded)), None)
    if over is not None and not over.unproven:
        print(f"run {folder.run} is over already: {state_word(over.outcome)}", file=sys.stderr)
        others = () if arguments.run else [other.run for other in runs() if other.has_keeper()]
        if others:
            print(f"it was the newest; going on: {', '.join(others)}; orchestrate stop RUN", file=sys.stderr)
        return int(ExitStatus.OK)
    reader = RunReader(folder, wanted=lambda _task: False)
    reader.skip(len(history))  # what was before is not news
    with watch.Interrupts() as interrupts:
        # Whoever is faster than we are may have become its keeper, without knowing of a stop.
        while not folder.ask_keeper({"want": want}) and not keeping.keep_adopted(
            folder, folder.read_plan(), stop=want
        ):
            time.sleep(_AGAIN)
        renderer = choose(sys.stdout, arguments.json, sys.stderr)
        status = watch.own(folder, reader, renderer, interrupts, want)
    ended = next((s.event for s in reversed(events_of(folder)) if isinstance(s.event, RunEnded)), None)
    if ended is not None and ended.unproven:
        return int(ExitStatus.CLUSTER)
    return int(ExitStatus.OK) if status == ExitStatus.INTERRUPTED and ended is not None else status
