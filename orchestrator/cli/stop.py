"""`orchestrate stop`: ask the run's keeper, or become it, and watch until nothing is left."""

from __future__ import annotations

import argparse
import sys

from orchestrator.cli import keeping, watch
from orchestrator.cli.finding import find_run
from orchestrator.errors import ExitStatus
from orchestrator.events import RunEnded
from orchestrator.render import choose
from orchestrator.store import RunReader
from orchestrator.store.reader import events_of


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    want = "kill" if arguments.now else "stop"
    history = events_of(folder)
    over = next((s.event for s in reversed(history) if isinstance(s.event, RunEnded)), None)
    if over is not None and not over.unproven:
        print(f"run {folder.run} is over already: {over.outcome.value}", file=sys.stderr)
        return int(ExitStatus.OK)
    reader = RunReader(folder, wanted=lambda _task: False)
    reader.skip(len(history))  # what was before is not news
    with watch.Interrupts() as interrupts:
        if not (folder.has_keeper() and folder.ask_keeper({"want": want})):
            keeping.keep_adopted(folder, folder.read_plan(), stop=want)
        renderer = choose(sys.stdout, arguments.json, sys.stderr)
        status = watch.own(folder, reader, renderer, interrupts)
    return int(ExitStatus.OK) if status == ExitStatus.INTERRUPTED else status
