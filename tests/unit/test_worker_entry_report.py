"""The records a supervisor reads, and the pace in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker_entry.report import VARIABLE, Pace, Reporter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_progress_is_due_at_most_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    reporter = Reporter(str(tmp_path / "r"), clock=clock)
    for step in range(1, 31):
        if reporter.progress_due():
            reporter.progress(step, 0.5, 10.0)
        clock.now += 0.125
    assert [record["step"] for record in records(tmp_path / "r")] == [1, 9, 17, 25]


def test_each_kind_is_one_line(tmp_path: Path) -> None:
    reporter = Reporter(str(tmp_path / "r"))
    reporter.ready("2 replicas")
    reporter.progress(1, float("nan"), 3.14159)
    reporter.result(digest="ab", loss=None, steps=15)
    reporter.error("two\nlines")
    assert records(tmp_path / "r") == [
        {"kind": "ready", "note": "2 replicas"},
        {"kind": "progress", "step": 1, "loss": "nan", "steps_per_second": 3.142},
        {"kind": "result", "digest": "ab", "loss": None, "steps": 15},
        {"kind": "error", "message": "two\nlines"},
    ]


def test_without_a_file_nothing_is_due_and_nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reporter = Reporter.from_environment()
    assert not reporter.progress_due()
    reporter.ready("")


def test_a_file_that_cannot_be_written_does_not_end_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter(str(tmp_path / "no" / "folder")).ready("")
    assert "report not written" in capsys.readouterr().out


def test_the_pace_leaves_out_the_first_step() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.steps_per_second == 0
    clock.now += 4  # tracing
    pace.step()
    assert pace.steps_per_second == pytest.approx(0.25)
    for _ in range(10):
        clock.now += 0.1
        pace.step()
    assert pace.steps_per_second == pytest.approx(10)
    assert pace.seconds == pytest.approx(5)


def test_a_group_of_steps_counts_as_so_many() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(3):
        clock.now += 1
        pace.step(8)
    assert pace.steps_per_second == pytest.approx(8)
