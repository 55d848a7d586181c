"""The packages that docs/setup.md names for each framework are resolved: their wheels are too large."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.config.load import parse
from orchestrator.envs import Platform, fitting, resolve

PAGE = (Path(__file__).parents[2] / "docs" / "setup.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| `(packages = [^`]+)`[^|\n]*\|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("title", ROWS)
def test_an_example_resolves_and_has_wheels(title: str) -> None:
    table = parse(f'[[host]]\nssh = "a"\n[env]\n{ROWS[title]}\n').environment
    assert table is not None
    lock = resolve(table)
    assert set(lock.names) >= {re.split(r"\W", name)[0] for name in table.packages} - {"tensorflow"}
    assert fitting(lock, Platform("x86_64", "glibc 2.36"), None).minors


def test_they_are_all_read() -> None:
    assert len(ROWS) == 5
