"""Shared parts of the training tests: data, and desks with hosts that have TensorFlow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk, desk_with
from tests.tf.gang import called, once
from tests.training import training_python


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
    yield from desk_with(2, tmp_path, python=training_python())


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Desk]:
    yield from desk_with(3, tmp_path, python=training_python())


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Desk]:
    yield from desk_with(4, tmp_path, python=training_python())
