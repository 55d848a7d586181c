from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """For a file's tests that leave it as it was."""
    with Cluster(2) as running:
        yield running


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Two hosts; enough for everything that is about one task and the others."""
    yield from _desk(2, tmp_path)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(4, tmp_path)


def _desk(count: int, tmp_path: Path) -> Iterator[Desk]:
    with Cluster(count) as cluster, closing(Desk(cluster, tmp_path / "a user's $(folder)")) as made:
        yield made
