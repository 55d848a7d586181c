"""Real sshd's for the tests: one cluster a session for what leaves it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.model import Host
from orchestrator.rehearsal import Cluster
from orchestrator.ssh.connect import SshConnector
from orchestrator.transport import Link
from tests.ssh import keyagent


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(4, homes=True) as running:
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


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A running ssh-agent; its socket."""
    with keyagent.running(tmp_path) as sock:
        yield sock


@pytest.fixture
def connect(connector: SshConnector) -> Iterator[Callable[[Host], Link]]:
    """Connect and be closed at the end."""
    with ExitStack() as stack:

        def connect(host: Host) -> Link:
            opened = connector.connect(host, 20)
            stack.callback(opened.close)
            return opened

        yield connect
