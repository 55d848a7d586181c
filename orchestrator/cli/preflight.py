"""`orchestrate preflight`: will this cluster train? If not: what is wrong, where, and the fix."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import time
from pathlib import Path

from orchestrator import config, plan
from orchestrator.cli.keeping import owner
from orchestrator.cli.logins import logins
from orchestrator.errors import ExitStatus
from orchestrator.events import Phase, Stamped, encode
from orchestrator.model import Inventory, RunPlan


def main(arguments: argparse.Namespace) -> int:
    inventory = config.load(Path(arguments.hosts or "hosts.toml"))
    from orchestrator.bus import Bus
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet
    from orchestrator.phases.context import report_failures
    from orchestrator.phases.preflight import examine
    from orchestrator.render.errors import report
    from orchestrator.render.preflight import preflight_table

    def show(stamped: Stamped) -> None:
        if arguments.json:
            sys.stdout.buffer.write(encode(stamped) + b"\n")
            sys.stdout.buffer.flush()

    planned = everything(inventory)
    bus = Bus(show)
    fleet = Fleet(connectors(logins(planned.hosts)), lambda _frame: None)
    try:
        unreachable = fleet.connect(planned.hosts)
        report_failures(bus, Phase.CONNECT, unreachable)
        found = examine(fleet, bus, planned) if fleet.sessions else None
    finally:
        fleet.close()
    failed = {**unreachable, **(found.failed if found else {})}
    good = found is not None and found.good and not unreachable
    if not arguments.json:
        if found is not None:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            print("\n".join(preflight_table(found.checks, found.pairs, width)))
        if failed:
            from orchestrator.errors import SeveralErrors

            report(SeveralErrors(failed.values()), sys.stderr)
        count = len(planned.hosts)
        print(f"{count} hosts: " + ("ready to train" if good else "this cluster cannot train yet"))
    return int(ExitStatus.OK if good else ExitStatus.CLUSTER)


def everything(inventory: Inventory) -> RunPlan:
    """A plan of the job on all hosts, spares too: they are checked as if they had a task."""
    hosts = tuple(dataclasses.replace(host, spare=False) for host in inventory.hosts)
    return plan.assign(
        dataclasses.replace(inventory, hosts=hosts),
        command=(),
        env={},
        name="",
        run="preflight",
        owner=owner(),
        created=time.time(),
        environ=os.environ,
    )
