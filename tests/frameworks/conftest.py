"""Four hosts whose Python has PyTorch, or JAX and Keras 3, or TensorFlow."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk
from tests.training import jax_python, torch_python, training_python

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def torch_desk(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, torch_python, "an environment with PyTorch")


@pytest.fixture
def jax_desk(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, jax_python, "an environment with JAX")


@pytest.fixture
def tf_desk(tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(tmp_path, training_python, "TensorFlow")


def _desk(folder: Path, python: Callable[[], str], what: str) -> Iterator[Desk]:
    found = python()
    if not found and not os.environ.get("CI"):
        pytest.skip(f"needs {what}: scripts/setup frameworks")
    assert found, f"CI has not {what}: scripts/setup tests"
    with Cluster(4, python=found) as cluster, closing(Desk(cluster, folder)) as made:
        yield made
