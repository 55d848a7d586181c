"""The order of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

_TRAINING = Path(__file__).parent / "tf"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Training first: of two workers one begins with it, and the other with tests that mostly wait.

    pytest-xdist gives each a half of the list. At its end, both would train at once on two cores.
    """
    items.sort(key=lambda item: _TRAINING not in item.path.parents)
