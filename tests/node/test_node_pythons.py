"""The node's code runs on what clusters have: Python 3.8 and later."""

import ast
import sys
from pathlib import Path

import pytest

from orchestrator import node
from tests.node.harness import PROGRAMS, interpreters
from tests.processes import called

FOLDER = Path(node.__file__).parent


def test_every_module_is_python_3_8() -> None:
    for module in FOLDER.rglob("*.py"):
        ast.parse(module.read_text(), str(module), feature_version=(3, 8))


@pytest.mark.parametrize("python", interpreters() or [sys.executable], ids=lambda path: Path(path).name)
def test_a_whole_life_of_tasks_under_every_python_that_is_here(python: str, tmp_path: Path) -> None:
    done = called([python, "-I", "-B", PROGRAMS / "story.py", FOLDER.parents[1], tmp_path], timeout=60)
    assert (done.stdout, done.stderr) == ("told\n", "")
