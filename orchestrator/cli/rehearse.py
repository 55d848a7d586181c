"""`orchestrate rehearse`: the same preflight and launch, against private SSH servers on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from orchestrator.cli import launch, watch
from orchestrator.errors import ExitStatus
from orchestrator.model import Inventory
from orchestrator.rehearsal import Cluster


def main(arguments: argparse.Namespace) -> int:
    with Cluster(arguments.n, homes=True, python=arguments.python or sys.executable) as cluster:
        kept = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = str(cluster.folder / "controller")
        inventory = Inventory(cluster.hosts, source="the rehearsal")
        with watch.Interrupts() as interrupts:
            folder = launch.start(inventory, arguments, other_ports=False)
            status = launch.follow(folder, arguments, interrupts)
        if kept is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = kept
        kept_logs = arguments.keep_logs or status not in (ExitStatus.OK, ExitStatus.INTERRUPTED)
        if kept_logs:
            _keep(folder.path)
    if status == ExitStatus.CLUSTER and arguments.python is None:
        print("it trains with the Python that runs orchestrate; --python names another", file=sys.stderr)
    if not kept_logs:
        print(
            "the rehearsal's servers, folders and logs are removed; --keep-logs keeps the logs",
            file=sys.stderr,
        )
    return status


def _keep(path: Path) -> None:
    """Move the run's folder to where runs are kept, so that its logs can be read."""
    from orchestrator.store import runs_root

    runs_root().mkdir(mode=0o700, parents=True, exist_ok=True)
    target = runs_root() / path.name
    shutil.move(path, target)
    print(f"the run's logs were kept: orchestrate tail {path.name} ({target})", file=sys.stderr)
