"""The node's code runs on the Pythons of clusters: 3.8 and later."""

import ast
import re
import sys
from pathlib import Path

import pytest

from orchestrator import node
from tests.node.harness import PROGRAMS, interpreters
from tests.processes import called

FOLDER = Path(node.__file__).parent


def test_every_module_has_python_3_8_syntax() -> None:
    for module in FOLDER.rglob("*.py"):
        ast.parse(module.read_text(), str(module), feature_version=(3, 8))


def test_the_bundled_program_runs_under_python_3_9() -> None:
    """Debian 11 and Rocky 9 have it, and TensorFlow up to 2.20: local validation failed there."""
    for module in (FOLDER.parents[1] / "worker_entry").rglob("*.py"):
        text = module.read_text()
        ast.parse(text, str(module), feature_version=(3, 9))
        assert not re.search("TypeAlias|strict=", text), module


@pytest.mark.parametrize("python", interpreters() or [sys.executable], ids=lambda path: Path(path).name)
def test_tasks_run_from_start_to_end_under_every_installed_python(python: str, tmp_path: Path) -> None:
    done = called([python, "-I", "-B", PROGRAMS / "story.py", FOLDER.parents[1], tmp_path], timeout=60)
    assert (done.stdout, done.stderr) == ("told\n", "")
