"""Telling somebody that a run has ended: the user's own command, on this machine, with the result as JSON.

The command comes from the command line or hosts.toml of whoever launched, by way of the run's folder here;
plans on nodes do not hold it. What nodes said is in the JSON on its standard input, never in its arguments.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence

from orchestrator.eventjson import encode
from orchestrator.events import Noted, RunEnded, Stamped
from orchestrator.model import RunPlan
from orchestrator.phases.context import Run, log
from orchestrator.text import signal_name

PATIENCE = 30.0  # seconds


def notify(run: Run, ended: RunEnded, patience: float = PATIENCE) -> None:
    """Run the command of `--notify`, if there is one. What goes wrong with it is a note, and no more."""
    argv = run.folder.read_notify()
    if not argv:
        return
    why = _run(argv, result(run.plan, ended), patience)
    if why:
        log.warning("--notify: %s %s", shlex.join(argv), why)
        run.bus.emit(Noted(f"the run's end was not reported: the command of --notify {why}"))


def result(plan: RunPlan, ended: RunEnded) -> bytes:
    """The last event of the run as `--json` has it, with the run's name and hosts."""
    event = json.loads(encode(Stamped(time.time(), ended)))
    hosts = [host.name for host in plan.hosts]
    return json.dumps({**event, "name": plan.name, "hosts": hosts}).encode() + b"\n"


def _run(argv: Sequence[str], told: bytes, patience: float) -> str:
    """Return what went wrong; "" for nothing. Its output goes where ours does: the keeper's debug.log."""
    try:
        with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
            try:
                process.communicate(told, timeout=patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"was killed, since it had not ended after {patience:g} s"
    except OSError as error:
        return f"could not be started: {error.strerror or error}"
    if process.returncode < 0:
        return f"was killed by {signal_name(-process.returncode)}"
    return f"ended with exit status {process.returncode}" if process.returncode else ""
