"""Real SSH servers for the tests: one cluster per session for tests that do not modify it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from orchestrator.ssh.connect import SshConnector
from orchestrator.transport import Link


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(4) as running:
        yield running


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path) -> Path:
    """Copy the cluster's ssh_config, and its known_hosts next to it, so that a test can change them."""
    known, path = tmp_path / "known_hosts", tmp_path / "ssh config"
    known.write_text(cluster.known_hosts.read_text())
    path.write_text(cluster.ssh_config.read_text().replace(str(cluster.known_hosts), str(known)))
    return path


@pytest.fixture
def connector() -> Iterator[SshConnector]:
    opened = SshConnector()
    yield opened
    opened.close()


@pytest.fixture
def link(cluster: Cluster, connector: SshConnector) -> Iterator[Link]:
    opened = connector.connect(cluster.hosts[0], 20)
    yield opened
    opened.close()
