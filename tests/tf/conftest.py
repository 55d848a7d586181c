"""What the tests of training share: data to train on, and desks with hosts that have TensorFlow."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk
from tests.tf.gang import called, once
from tests.training import training_python

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as TFRecords: `one/` and `four/` training files, and as tensorflow-datasets' mnist."""
    with once(tmp_path_factory, "data") as folder:
        if not (folder / "made").exists():
            called(tmp_path_factory.mktemp("prepare"), "tests.tf.prepare", str(folder))
            (folder / "made").touch()
        return folder


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, 2)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, 3)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, 4)


def _desk(tmp_path: Path, hosts: int) -> Iterator[Desk]:
    with Cluster(hosts, python=training_python()) as cluster, closing(Desk(cluster, tmp_path)) as made:
        yield made
