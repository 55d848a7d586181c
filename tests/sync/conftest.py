"""Sessions with a real agent behind a real sshd."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.connectors import Connectors
from orchestrator.fleet import Session
from orchestrator.rehearsal import Cluster
from tests.folders import mounted


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as running:
        yield running


@pytest.fixture
def sessions(cluster: Cluster) -> Iterator[Callable[[int], Session]]:
    """Open a session with the n-th host."""
    with ExitStack() as stack:
        connector = Connectors()
        stack.callback(connector.close)

        def open_session(number: int) -> Session:
            host = cluster.hosts[number]
            session = Session(host, connector.connect(host, 20), lambda _: None)
            stack.callback(session.close)
            session.start()
            return session

        yield open_session


@pytest.fixture
def session(sessions: Callable[[int], Session]) -> Session:
    return sessions(0)


@pytest.fixture
def workdir(tmp_path: Path) -> str:
    """A workdir with a name that needs quoting everywhere."""
    return str(tmp_path / "work'; echo foo \\ $HOME")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "size=2m") as disk:
        yield disk
