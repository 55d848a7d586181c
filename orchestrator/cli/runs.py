"""`orchestrate runs`: what this machine knows, the newest first."""

from __future__ import annotations

import argparse
import sys

from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.render.tables import RunRow, runs_table
from orchestrator.store import runs
from orchestrator.store.reader import events_of
from orchestrator.view import replay


def main(arguments: argparse.Namespace) -> int:
    rows: list[RunRow] = []
    for folder in runs():
        try:
            plan, view = folder.read_plan(), replay(events_of(folder))
        except OrchestrateError:
            continue
        rows.append(RunRow(plan=plan, view=view, kept=folder.has_keeper()))
    for line in runs_table(rows, json=arguments.json):
        print(line)
    if not rows and not arguments.json:
        print("no runs yet; orchestrate launch starts one", file=sys.stderr)
    return int(ExitStatus.OK)
