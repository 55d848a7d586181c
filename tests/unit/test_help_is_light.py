"""`--help` must be instant, which benchmarks/help measures: here is what would make it slow."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.args import parser

ROOT = Path(__file__).parents[2]
HEAVY = (
    "argcomplete",
    "asyncio",
    "cryptography",
    "fabric",
    "msgspec",
    "paramiko",
    "pathspec",
    "rich",
    "tomllib",
)


def test_little_is_loaded_before_ctrl_c_is_taken() -> None:
    code = (
        "import sys; from orchestrator.cli.main import run; print([m for m in ('argparse',"
        "'dataclasses', 'orchestrator.model') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("line", [["--help"], ["launch", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(line: list[str]) -> None:
    code = (
        "import sys\n"
        "from orchestrator.cli.main import main\n"
        "try:\n"
        f"    main({line!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "usage: orchestrate" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_each_file_of_cli_is_a_verb_of_the_table() -> None:
    files = {file.stem for file in (ROOT / "orchestrator" / "cli").glob("*.py")}
    assert files == {*parser.VERBS, "__init__", "main"}


@pytest.mark.parametrize("name", parser.VERBS)
def test_a_verb_says_what_it_is_for_and_which_options_it_has(name: str) -> None:
    verb = parser.verb(name)
    assert verb.SUMMARY[0].islower()
    verb.add_arguments(argparse.ArgumentParser())
    assert callable(verb.main)
