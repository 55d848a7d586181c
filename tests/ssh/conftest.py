"""Real sshd's for the tests: one cluster a session for what leaves it as it was."""

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
    """A copy of the cluster's ssh_config, to be changed, and one of its known_hosts beside it."""
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
