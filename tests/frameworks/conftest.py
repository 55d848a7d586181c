"""Four hosts whose Python has PyTorch, or JAX and Keras 3, or TensorFlow."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk, desk_with
from tests.training import jax_python, torch_python, training_python


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
    yield from desk_with(4, folder, python=found)
