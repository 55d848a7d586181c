"""`orchestrate tail`: any run, live or past; takes over one whose keeper is gone."""

from __future__ import annotations

import argparse
import math
import sys

from orchestrator.cli import keeping, watch
from orchestrator.cli.finding import find_run, is_over
from orchestrator.cli.launch import BEHIND
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.render import choose
from orchestrator.store import RunReader


def main(arguments: argparse.Namespace) -> int:
    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    wanted = {str(task) for task in arguments.task}
    if unknown := wanted - {str(spec.id) for spec in plan.tasks}:
        raise UsageError(
            f"run {folder.run} has no task {min(unknown)}",
            hint=f"its tasks: {', '.join(str(spec.id) for spec in plan.tasks)}",
        )
    ended = is_over(folder)
    if not ended and not arguments.no_follow:
        keeping.keep_adopted(folder, plan)  # does nothing when it has a keeper
    last = None if math.isinf(arguments.n) else int(arguments.n)
    behind = BEHIND if sys.stdout.isatty() and not arguments.json else None
    reader = RunReader(
        folder, wanted=lambda task: not wanted or task in wanted, last=last, drop_behind=behind
    )
    renderer = choose(sys.stdout, arguments.json, sys.stderr)
    if arguments.no_follow and not ended:
        try:
            for stamped in reader.poll():
                renderer.handle(stamped)
        finally:
            renderer.close()
        return int(ExitStatus.OK)
    return watch.look(folder, reader, renderer)
