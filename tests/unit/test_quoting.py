"""Command lines are split into the same words by every login shell."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.transport import command_line


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_posix_shell_reads_the_words_back(argv: list[str]) -> None:
    assert shlex.split(command_line(["x", *argv])) == ["x", *argv]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["~/bin/python", "~/x"], "~/bin/python '~/x'"),
        (["~/my env/bin/python"], "~/'my env/bin/python'"),
        (["~other/x"], "'~other/x'"),
    ],
)
def test_how_it_looks(argv: list[str], line: str) -> None:
    assert command_line(argv) == line
