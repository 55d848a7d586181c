"""`orchestrate rehearse`: the same preflight and launch, against private SSH servers on this machine."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import stat
import sys
from pathlib import Path

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import tell
from orchestrator.errors import ExitStatus

SUMMARY = "try it all on this machine: private SSH servers, preflight and launch, no trace left"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "rehearse [-n N] [options] [-- COMMAND ...]")
    parser.add_argument(
        "-n", type=readings.whole(1, 64), default=4, metavar="N", help="how many hosts (default: 4)"
    )
    parser.add_argument("--python", help="the Python that trains (default: the one that runs orchestrate)")
    parser.add_argument("--keep-logs", action="store_true", help="keep the run's folder and say where it is")
    options.launching(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk.asking import logins
    from orchestrator.cli.desk.following import follow
    from orchestrator.cli.desk.interrupts import Interrupts
    from orchestrator.launching.start import start
    from orchestrator.model import Inventory
    from orchestrator.rehearsal import Cluster

    with Cluster(arguments.n, homes=True, python=arguments.python or sys.executable) as cluster:
        kept = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = str(cluster.folder / "controller")
        inventory = Inventory(cluster.hosts, source="the rehearsal")
        with Interrupts() as interrupts:
            folder = start(inventory, arguments, logins, other_ports=False)
            status = follow(folder, arguments, interrupts)
        if kept is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = kept
        kept_logs = arguments.keep_logs or status not in (ExitStatus.OK, ExitStatus.INTERRUPTED)
        if kept_logs:
            _keep(folder.path)
    if status == ExitStatus.CLUSTER and arguments.python is None:
        tell("the tasks use the Python that runs orchestrate; name another with --python")
    if not kept_logs:
        tell("the rehearsal's servers, folders and logs are removed; --keep-logs keeps the logs")
    return status


def _no_files(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied, nor is of use after the run: pipes and sockets."""
    modes = {name: Path(folder, name).lstat().st_mode for name in names}
    return [
        name
        for name, mode in modes.items()
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


def _keep(path: Path) -> None:
    """Move the run's folder to where runs are kept, so that its logs can be read."""
    from orchestrator.plainfile import make_folder
    from orchestrator.store import runs_root

    make_folder(runs_root())
    target = runs_root() / path.name
    try:
        path.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(path, target, symlinks=True, ignore=_no_files)
    tell(f"the run's logs were kept: orchestrate tail {path.name} ({target})")
