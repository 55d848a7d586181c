"""preflight, launch, and tail on machines with their own addresses, homes, and shells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import ExitStatus
from tests.cluster.machines import BEHIND_BASTION
from tests.processes import called

if TYPE_CHECKING:
    from tests.cluster.machines import Cluster, Node

Orchestrate = Callable[..., subprocess.CompletedProcess[str]]

# With a shared home, a different shell, or behind a jump host: each machine trains.
TRAINING = ("node1", "node2", "node3", "node5")
TASKS = ("worker/0 node1", "worker/1 node2", "worker/2 node3", "worker/3 node5")


@pytest.fixture(scope="module")
def orchestrate(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Orchestrate:
    """Run the command as a user types it, in a separate project and with separate state."""
    home = tmp_path_factory.mktemp("controller")
    project = home / "my project"
    project.mkdir()
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home)}
    program = [sys.executable, "-c", "from orchestrator.cli.main import run; run()"]

    def run(verb: str, *arguments: str, hosts: Path = cluster.hosts) -> subprocess.CompletedProcess[str]:
        return called(
            [*program, verb, "--hosts", str(hosts), *arguments], cwd=project, env=environment, timeout=400
        )

    return run


def test_preflight(orchestrate: Orchestrate) -> None:
    done = orchestrate("preflight")
    assert done.returncode == ExitStatus.OK, done.stdout + done.stderr
    assert re.search(r"^node\[1-6\] .* 3\.11\.\d+ ", done.stdout, re.MULTILINE), done.stdout
    assert "ready to train" in done.stdout + done.stderr


def digests(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(worker/\d node\d) \| weights digest (\w+)$", text, re.MULTILINE))


def test_the_main_job(orchestrate: Orchestrate, cluster: Cluster, tmp_path: Path) -> None:
    hosts = cluster.hosts_file(tmp_path / "hosts.toml", TRAINING)
    training = ("--dataset", "digits", "--optimizer", "adam", "--learning-rate", "1e-3", "--epochs", "8")
    done = orchestrate("launch", "--", *training, hosts=hosts)
    assert done.returncode == ExitStatus.OK, done.stdout + done.stderr
    weights = digests(done.stdout)
    assert tuple(sorted(weights)) == TASKS
    assert len(set(weights.values())) == 1
    accuracies = [float(found) for found in re.findall(r"test accuracy ([\d.]+)", done.stdout)]
    assert len(accuracies) == len(TASKS)
    assert min(accuracies) > 0.9

    again = orchestrate("tail", "--no-follow", "-n", "1000")
    assert again.returncode == ExitStatus.OK, again.stderr
    assert digests(again.stdout) == weights


def test_only_through_the_bastion(orchestrate: Orchestrate, cluster: Cluster, tmp_path: Path) -> None:
    """Two machines unreachable from here connect to each other, and to us through the jump host."""
    hosts = cluster.hosts_file(tmp_path / "hosts.toml", BEHIND_BASTION)
    say = "import json, os; print(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])"
    done = orchestrate("launch", "--no-validate", "--", "python3", "-c", say, hosts=hosts)
    assert done.returncode == ExitStatus.OK, done.stdout + done.stderr
    both = str([f"{cluster.node(node).address}:2222" for node in BEHIND_BASTION])
    assert f"worker/0 node5 | {both}" in done.stdout
    assert f"worker/1 node6 | {both}" in done.stdout


def test_nothing_is_left_on_the_machines(orchestrate: Orchestrate, cluster: Cluster) -> None:
    assert (
        orchestrate("launch", "--no-validate", "--", "sh", "-c", "sleep 600 & echo hello").returncode
        == ExitStatus.OK
    )
    deadline = time.monotonic() + 30
    for node in cluster.nodes:
        mine = _processes(cluster, node)
        assert not [line for line in mine if "sleep" in line]
        # Agents and guards exit after the keeper, which the viewer does not wait for.
        while [line for line in mine if "orchestrate_node" in line or "eval(" in line]:
            assert time.monotonic() < deadline, mine
            mine = _processes(cluster, node)


def _processes(cluster: Cluster, node: Node) -> list[str]:
    return cluster.output_of(node.name, f"ps -u {node.user} -o args=").splitlines()
