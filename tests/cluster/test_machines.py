"""The machines are what the other tests here take them for."""

from __future__ import annotations

import itertools
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

NODES = ("node1", "node2", "node3", "node4")


@pytest.mark.parametrize(
    ("node", "user", "shell"),
    [
        ("node1", "train", "/bin/bash"),
        ("node2", "train", "/bin/bash"),
        ("node3", "vera", "/bin/csh"),
        ("node4", "train", "/bin/bash"),
    ],
)
def test_login_without_root(cluster: Cluster, node: str, user: str, shell: str) -> None:
    said = cluster.said(node, "hostname; id -un; echo $SHELL").split()
    assert said == [node, user, shell]


def test_addresses_of_their_own(cluster: Cluster) -> None:
    assert len({node.address for node in cluster.nodes}) == len(NODES)
    for node in cluster.nodes:
        assert node.address in cluster.said(node.name, "hostname -I").split()


@pytest.mark.parametrize(("here", "there"), list(itertools.permutations(NODES, 2)))
def test_they_reach_each_other(cluster: Cluster, here: str, there: str) -> None:
    cluster.said(here, f"ping -c 1 -w 5 {cluster.node(there).address}")


def test_two_share_a_home(cluster: Cluster) -> None:
    cluster.said("node1", "echo hello > ~/shared")
    seen = {node: cluster.said(node, "ls ~").split() for node in NODES}
    assert seen == {"node1": ["shared"], "node2": ["shared"], "node3": [], "node4": []}
    cluster.said("node2", "rm ~/shared")


@pytest.mark.parametrize("node", NODES)
def test_training_environment(cluster: Cluster, node: str) -> None:
    python = "/opt/orchestrate/worker/bin/python"
    assert cluster.said(node, f"{python} -c 'import numpy; print(int(numpy.arange(4).sum()))'") == "6\n"
    assert "read-only" in cluster.said(node, f"touch {python}.x |& cat || true").lower()


@pytest.mark.parametrize("node", NODES)
def test_nothing_of_ours_is_installed(cluster: Cluster, node: str) -> None:
    cluster.said(node, "test -x /usr/bin/python3 && test -x /usr/bin/rsync")
    assert "No module named" in cluster.ssh(node, "/usr/bin/python3 -c 'import orchestrator'").stderr


def test_other_host_keys_are_refused(cluster: Cluster) -> None:
    """The keys were gathered beside the network: another machine at the address is noticed."""
    known = [line.split() for line in (cluster.folder / "known_hosts").read_text().splitlines()]
    assert len({key for _, _, key in known}) == len(NODES)
    refused = cluster.ssh("node1", "true", "-o", "HostKeyAlias=node2")
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_a_machine_can_go_and_come_back(cluster: Cluster) -> None:
    """Its host key and address stay: to the others it is the same machine."""
    before = cluster.said("node4", "cat /proc/1/stat").split()[21]
    container = cluster.node("node4").container
    subprocess.run(["docker", "restart", "--time", "1", container], check=True, timeout=60)
    deadline = time.monotonic() + 20
    while cluster.ssh("node4", "true").returncode and time.monotonic() < deadline:
        time.sleep(0.1)
    assert cluster.said("node4", "cat /proc/1/stat").split()[21] != before
