"""Training for real takes the whole machine: these tests share one of the suite's workers."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("training"))
            item.add_marker(pytest.mark.timeout(300))
