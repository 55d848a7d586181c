from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import paths, procs
from tests.node.harness import Node
from tests.node.lab import Lab


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A run whose folders have a hostile name; anything it leaves behind is killed, and fails the test."""
    folder = tmp_path / 'a\'; echo "$(x)" é'
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))  # keeps the user's profile out of `bash -l`
    made = Node(paths.open_root(str(folder / "state")), folder)
    yield made
    made.stop(kill=True)
    made.alone()
    assert procs.sweep(made.run) == []


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A machine whose folders have hostile names."""
    folder = tmp_path / 'a\'; echo "$(x)" é'
    folder.mkdir()
    made = Lab(folder)
    yield made
    made.close()
