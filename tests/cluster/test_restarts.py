"""A machine that is replaced while it cannot be reached, and comes back with its old task still running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ExitStatus
from orchestrator.timings import VARIABLE
from tests.chaos.machine import Machine

if TYPE_CHECKING:
    from tests.cluster.machines import Cluster

# The patience of a person, for a test.
IMPATIENT = {"silence": 3.0, "beat": 0.5, "host_return": 1.0, "stop_unreachable": 1.0}
CUT = ("INPUT", "!", "-i", "lo", "-j", "DROP")
TASK = (
    "echo attempt $ORCHESTRATE_ATTEMPT is up; until [ -e ~/enough-$ORCHESTRATE_ATTEMPT ]; do sleep 0.1; done"
)


def until(what: str, condition: Callable[[], object], limit: float = 90.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_it_is_cleared_of_what_it_still_runs(cluster: Cluster, tmp_path: Path) -> None:
    hosts = cluster.hosts_file(tmp_path / "hosts.toml", ("node1", "node3", "node4"))
    hosts.write_text(f"{hosts.read_text()}spare = true\n\n[job]\nhost_timeout = 2\nfailure_grace = 0.1\n")
    said, project = tmp_path / "said", tmp_path / "project"
    project.mkdir()
    words = ("launch", "--hosts", str(hosts), "--no-validate", "--skip-preflight", "--max-restarts", "1")
    with said.open("w") as out:
        launch = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words, "--", "sh", "-c", TASK],
            cwd=project,
            env={
                **os.environ,
                VARIABLE: json.dumps(IMPATIENT),
                "XDG_STATE_HOME": str(tmp_path / "state"),
                "XDG_CONFIG_HOME": str(tmp_path),
            },
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until("both tasks are up", lambda: said.read_text().count("attempt 1 is up") == 2)
        victim = Machine(cluster.node("node3"), "")
        victim.in_network("iptables", "-w", "-I", *CUT)
        try:
            until("the spare has its task", lambda: said.read_text().count("attempt 2 is up") == 2)
            assert any(process.cookie for process in victim.processes())
        finally:
            victim.in_network("iptables", "-w", "-D", *CUT)
        until("the old task is gone", lambda: not any(one.cookie for one in victim.processes()))
        for node in ("node1", "node4"):
            cluster.said(node, "touch ~/enough-2")
        assert launch.wait(60) == ExitStatus.OK, said.read_text()
    finally:
        launch.kill()
        launch.wait()
        for node in ("node1", "node4"):
            cluster.said(node, "rm -f ~/enough-2")
    assert "node3: cannot be reached; node4 takes its place" in said.read_text()
    assert "no answer" not in said.read_text()
