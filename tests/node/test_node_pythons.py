"""The node's code runs on what clusters have: Python 3.8 and later, the standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import node
from tests.node.harness import PROGRAMS, interpreters

FOLDER = Path(node.__file__).parent
STANDARD = {*sys.stdlib_module_names, "sitecustomize", "site_frameworks"}  # the hook may be anybody's
MODULES = sorted(FOLDER.rglob("*.py"))


def _top(item: ast.ImportFrom) -> str:
    return (item.module or "").split(".")[0]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_every_module_is_python_3_8_and_imports_only_the_standard_library(module: Path) -> None:
    tree = ast.parse(module.read_text(), feature_version=(3, 8))
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            assert {name.name.split(".")[0] for name in item.names} <= STANDARD
        if isinstance(item, ast.ImportFrom):
            assert item.level in (1, 2) or _top(item) in {"orchestrate_node", *STANDARD}, _top(item)


@pytest.mark.parametrize("python", interpreters() or [sys.executable], ids=lambda path: Path(path).name)
def test_a_whole_life_of_tasks_under_every_python_that_is_here(python: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [python, "-I", "-B", PROGRAMS / "story.py", FOLDER.parents[1], tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("told\n", "")
