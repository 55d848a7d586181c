"""Real sshd's for the tests: one cluster a session for what leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.rehearsal import Cluster
from orchestrator.ssh.connect import SshConnector
from orchestrator.transport import Link


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(4) as running:
        yield running


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
