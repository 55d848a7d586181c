"""preflight on machines of which one has a fault: that is found, with nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults import FAULTS, Fault, iptables

if TYPE_CHECKING:
    from tests.cluster.machines import Cluster

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("iptables") or not shutil.which("nsenter"),
    reason="filters of containers are changed from outside by root",
)


def preflight(cluster: Cluster, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Of a job that imports nothing: the real imports are those of the main job's preflight."""
    text = cluster.hosts.read_text()
    hosts = folder / "hosts.toml"
    hosts.write_text(f'[job]\ncommand = ["true"]\n\n{text}')
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder)}
    program = [sys.executable, "-c", "from orchestrator.cli.main import run; run()"]
    argv = [*program, "preflight", "--hosts", str(hosts), *options]
    return subprocess.run(
        argv, check=False, capture_output=True, text=True, env=environment, timeout=200, cwd=folder
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_nothing_else(cluster: Cluster, fault: Fault, tmp_path: Path) -> None:
    iptables(cluster, fault.node, "-A", fault.rule)
    try:
        done = preflight(cluster, tmp_path)
    finally:
        iptables(cluster, fault.node, "-D", fault.rule)
    said = done.stdout + done.stderr
    for part in fault.found:
        assert part in said, said
    assert len(re.findall(r"^(?:error|warning): ", said, re.MULTILINE)) == 1, said
