from __future__ import annotations

import socket
from pathlib import Path

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk


def test_sixty_four_hosts_through_the_whole_of_launch(tmp_path: Path) -> None:
    with Cluster(64, servers=4, homes=True) as cluster:
        desk = Desk(cluster, tmp_path)
        try:
            viewer = desk.launch("--no-validate", "--", "hostname", fast=False)
            assert viewer.wait(120) == ExitStatus.OK, viewer.stderr
            lines = [
                line for line in viewer.stdout.splitlines() if line.endswith(f"| {socket.gethostname()}")
            ]
            assert len(lines) == 64
            reach = [check["level"] for check in desk.named("CheckReported") if check["check"] == "reach"]
            assert reach == ["ok"] * 64
            assert desk.named("PairReported") == []  # of a launch: those with something wrong
            desk.logs_are_identical(desk.run_id())
            desk.nothing_is_left(desk.run_id())
        finally:
            desk.close()
