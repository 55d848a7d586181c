from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import HOSTILE, Desk, desk_with


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster for the tests of a file, which do not modify it."""
    with Cluster(2) as running:
        yield running


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Two hosts, enough for tests of one task and its peers."""
    yield from desk_with(2, tmp_path / HOSTILE)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Desk]:
    yield from desk_with(4, tmp_path / HOSTILE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the output of viewers and keepers to a failure."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for path in sorted([*folder.glob("*/err-*"), *folder.glob("*/state/orchestrate/runs/*/debug.log")]):
            report.sections.append((path.name, path.read_text("utf-8", "replace")[-4000:]))
    return report
