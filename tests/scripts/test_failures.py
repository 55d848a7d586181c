"""Verdicts of typical failures: the exact header and hint of each.

The texts next to the programs are their output under TensorFlow 2.21; `verdicts.toml` has our verdicts. Some
programs are run again, so that the texts stay true.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.diagnosis.statement import Statement
from orchestrator.diagnosis.verdict import judge
from orchestrator.events import TaskExited
from tests.processes import called
from tests.scripts.failures.programs import PROGRAMS
from tests.training import training_python

HERE = Path(__file__).parent / "failures"
SEVERAL: dict[str, dict[str, Any]] = tomllib.loads((HERE / "two" / "verdicts.toml").read_text())
VERDICTS: dict[str, dict[str, str]] = tomllib.loads((HERE / "verdicts.toml").read_text())


def verdict(text: str) -> dict[str, str]:
    lines = tuple(line for line in text.split("\n") if line.strip())
    exited = TaskExited("worker/0", "a", "1", 1, None, "", 0.0, 9.0, stopped=False)
    found = judge([exited], lambda _task, _attempt: Statement(lines))
    return {
        "header": found.cause.removeprefix("worker/0 on a exited with 1").lstrip(":; "),
        "hint": found.hint,
    }


def verdict_of_several(name: str, row: dict[str, Any]) -> dict[str, str]:
    """`tasks` are in order of their ends, each on its own host; the last may have no output."""

    def hear(task: str, _attempt: str) -> Statement:
        path = HERE / "two" / f"{name}.{task.replace('/', '-')}.txt"
        lines = path.read_text().split("\n") if path.exists() else []
        return Statement(tuple(filter(None, lines)))

    exits = [
        TaskExited(task, f"node{place}", "1", 1, None, "", 0.0, 9.0 + place, stopped=False)
        for place, task in enumerate(row["tasks"], start=1)
    ]
    found = judge(exits, hear)
    return {"cause": found.cause, "hint": found.hint}


@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_the_task_at_fault_is_named_among_several(name: str) -> None:
    expected = SEVERAL[name]
    assert verdict_of_several(name, expected) == {"cause": expected["cause"], "hint": expected["hint"]}


def test_there_are_enough_failures() -> None:
    assert len(VERDICTS) + len(SEVERAL) >= 60
    assert set(PROGRAMS) <= set(VERDICTS)


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_a_failure_gets_its_exact_header_and_hint(name: str) -> None:
    assert verdict((HERE / f"{name}.txt").read_text()) == VERDICTS[name]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_programs_still_fail_this_way(tmp_path: Path) -> None:
    """Run all of them in processes forked from one that has imported TensorFlow."""
    environ = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "PATH": "/usr/bin:/bin"}
    done = called([training_python(), HERE / "programs.py", tmp_path], env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    hints = {name: verdict((tmp_path / f"{name}.txt").read_text())["hint"] for name in PROGRAMS}
    assert hints == {name: VERDICTS[name]["hint"] for name in PROGRAMS}
