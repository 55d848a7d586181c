"""The machines are what the other tests here take them for."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.machines import BEHIND_BASTION, NODES

if TYPE_CHECKING:
    from tests.cluster.machines import Cluster


@pytest.mark.parametrize(
    ("node", "user", "shell"),
    [
        ("node1", "train", "/bin/bash"),
        ("node2", "train", "/bin/bash"),
        ("node3", "vera", "/bin/csh"),
        ("node4", "train", "/bin/bash"),
        ("node5", "train", "/bin/bash"),
        ("bastion", "train", "/bin/bash"),
    ],
)
def test_login_without_root(cluster: Cluster, node: str, user: str, shell: str) -> None:
    said = cluster.said(node, "hostname; id -un; echo $SHELL").split()
    assert said == [node, user, shell]


def test_addresses_of_their_own(cluster: Cluster) -> None:
    assert len({node.address for node in cluster.nodes}) == len(NODES)
    for node in cluster.nodes:
        assert node.address in cluster.said(node.name, "hostname -I").split()


@pytest.mark.parametrize("here", NODES)
def test_they_reach_each_other(cluster: Cluster, here: str) -> None:
    others = [cluster.node(there).address for there in NODES if there != here]
    cluster.said(here, " && ".join(f"ping -c 1 -w 5 {address}" for address in others))


@pytest.mark.parametrize("node", BEHIND_BASTION)
def test_behind_the_bastion_nothing_answers_us(cluster: Cluster, node: str) -> None:
    """Not sshd, and no other port either: no packet of theirs finds its way here."""
    direct = cluster.ssh(node, "true", "-o", "ProxyJump=none", "-o", "ConnectTimeout=2")
    assert "timed out" in direct.stderr
    with pytest.raises(TimeoutError):
        socket.create_connection((cluster.node(node).address, 2222), timeout=1)
    with socket.create_connection((cluster.bastion.address, 22), timeout=5):
        pass
    assert cluster.said("bastion", f"ping -c 1 -w 5 {cluster.node(node).address}")


def test_two_share_a_home(cluster: Cluster) -> None:
    cluster.said("node1", "echo hello > ~/shared")
    assert {node for node in NODES if "shared" in cluster.said(node, "ls ~").split()} == {"node1", "node2"}
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
    assert len({key for _, _, key in known}) == len((*NODES, "bastion"))
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
