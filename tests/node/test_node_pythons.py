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
STANDARD = {*sys.stdlib_module_names, "sitecustomize"}  # the last is whoever's there is, or nobody's
MODULES = sorted(FOLDER.rglob("*.py"))
HOT = ("main", "task.control", "task.follow", "task.start", "task.tasks")


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


def test_python_3_8_itself_was_among_them() -> None:
    if not any(path.endswith("3.8") for path in interpreters()):
        pytest.skip("no python3.8 on this machine: only its grammar was checked")


def test_the_hot_path_of_a_start_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"asyncio", "dataclasses", "hashlib", "inspect", "logging", "pathlib", "shutil", "subprocess"}
    heavy |= {"tempfile", "orchestrator.node.hook.site_tensorflow"}
    modules = ", ".join(f"orchestrator.node.{name}" for name in HOT)
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {modules}\n"
    code += "from orchestrator.node import base, hook\n"
    code += "assert hook.site.install(base.paths.Paths(sys.argv[2]))\n"
    code += "print(*sorted(set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, FOLDER.parents[1], tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert heavy.isdisjoint(done.stdout.split())
