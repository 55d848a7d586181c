"""`orchestrate stop`: ask the run's keeper, or become it, and watch until nothing is left."""

from __future__ import annotations

import argparse
import sys
import time

from orchestrator.cli import keeping, watch
from orchestrator.cli.finding import find_run
from orchestrator.errors import ExitStatus
from orchestrator.events import RunEnded, Stamped, encode
from orchestrator.render import choose
from orchestrator.render.tables import state_word
from orchestrator.store import RunFolder, RunReader, runs
from orchestrator.store.reader import events_of
from orchestrator.text import plain
from orchestrator.view import HostState, replay

_AGAIN = 0.05  # seconds


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts, to_stop=True)
    want = "kill" if arguments.now else "stop"
    history = events_of(folder)
    end = next((s for s in reversed(history) if isinstance(s.event, RunEnded)), None)
    over = end.event if end is not None else None
    if end is not None and isinstance(over, RunEnded) and not over.unproven:
        if arguments.json:
            print(encode(end).decode())
        print(f"run {folder.run} is over already: {state_word(over.outcome)}", file=sys.stderr)
        others = () if arguments.run else [other.run for other in runs() if other.has_keeper()]
        if others:
            print(f"it was the newest; going on: {', '.join(others)}; orchestrate stop RUN", file=sys.stderr)
        return int(ExitStatus.OK)
    reader = RunReader(folder, wanted=lambda _task: False)
    reader.skip(len(history))  # what was before is not news
    with watch.Interrupts() as interrupts:
        _reach_keeper(folder, want, len(history))
        renderer = choose(sys.stdout, arguments.json, sys.stderr)
        if not arguments.json:
            _tell_who_is_lost(history, 0.0 if arguments.now else folder.read_plan().grace)
        status = watch.own(folder, reader, renderer, interrupts, want)
    ended = next((s.event for s in reversed(events_of(folder)) if isinstance(s.event, RunEnded)), None)
    if ended is not None and ended.unproven:
        return int(ExitStatus.CLUSTER)
    cleared = over is not None or status == ExitStatus.INTERRUPTED
    return int(ExitStatus.OK) if cleared and ended is not None else status


def _reach_keeper(folder: RunFolder, want: str, known: int) -> None:
    """Ask the run's keeper, or become it; neither for a run that ended after its `known` first events."""
    while not folder.ask_keeper({"want": want}):
        # A keeper writes the end before it goes.
        if not folder.has_keeper() and any(isinstance(s.event, RunEnded) for s in events_of(folder)[known:]):
            return
        # Whoever is faster than we are may have become its keeper, without knowing of a stop.
        if keeping.keep_adopted(folder, folder.read_plan(), stop=want):
            return
        time.sleep(_AGAIN)


def _tell_who_is_lost(history: list[Stamped], grace: float) -> None:
    """Of a host that was lost before we looked no event will come, and the stop waits for it."""
    from orchestrator.phases.stop import IMPATIENT, UNREACHABLE

    seconds = grace + UNREACHABLE if grace else IMPATIENT
    for host in replay(history).hosts.values():
        if host.state is HostState.LOST:
            said = f"{host.name}: no word from it ({host.why}); waiting for it, {seconds:.0f} s at most"
            print(plain(said), file=sys.stderr)
