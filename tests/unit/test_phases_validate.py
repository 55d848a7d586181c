"""What a host says in its local training, read and worded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import FetchStepped, Last, TaskExited, TaskReported
from orchestrator.model import TaskId
from orchestrator.phases.validate import _failed, _validated
from orchestrator.run.records import reported

TASK = TaskId.parse("worker/0")


def end(code: int | None, signal: int | None = None) -> TaskExited:
    return TaskExited("worker/0", "a", "1", code, signal, "", seconds=3.0, ended=1.0, stopped=False)


@pytest.mark.parametrize(
    ("record", "event"),
    [
        ({"name": "mnist", "step": "downloads", "done": 1, "total": 2}, ("mnist", "downloads", 1, 2)),
        ({}, ("", "", 0, 0)),
        ({"name": 7, "step": None, "done": -1, "total": 2**70}, ("7", "None", 0, 0)),
        ({"name": "n" * 999, "step": "s", "done": "1", "total": 1.5}, ("n" * 100, "s", 0, 0)),
    ],
)
def test_what_is_said_of_data(record: dict[str, Any], event: tuple[str, str, int, int]) -> None:
    line = json.dumps({"kind": "data", **record}).encode()
    assert reported(TASK, line) == FetchStepped("worker/0", *event)


@pytest.mark.parametrize("value", ["0.5", None, [], float("nan"), float("inf"), 10**40])
def test_a_result_that_is_no_number_is_none(value: object) -> None:
    """Also of a stranger, and of a command of the user's own, which reports nothing."""
    told = TaskReported("worker/0", Last.RESULT, {"loss": value, "steps_per_second": value})
    found = _validated("a", end(0), told)
    assert (found.loss, found.steps_per_second) == (None, None)


def test_an_error_of_worker_entry_is_the_hosts_error(tmp_path: Path) -> None:
    told = TaskReported(
        "worker/0", Last.ERROR, {"message": "no data", "why": "no network", "hint": "do this"}
    )
    error = _failed(tmp_path / "log", "a", end(1), told, 900.0)
    assert (error.what, error.hint) == ("cannot train: no data", "")
    assert error.why == "no network\nits task advises: do this"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (end(1), None),
        (end(1), TaskReported("worker/0", Last.ERROR, {"message": "boom", "type": "ValueError"})),
        (end(1), TaskReported("worker/0", Last.RESULT, {"hint": "x"})),
    ],
)
def test_else_its_last_lines_are_the_reason(
    tmp_path: Path, how: TaskExited, told: TaskReported | None
) -> None:
    (tmp_path / "log").write_text("the last line\n")
    error = _failed(tmp_path / "log", "a", how, told, 900.0)
    assert error.what == "fails in its local training (exit 1)"
    assert "the last line" in error.why
