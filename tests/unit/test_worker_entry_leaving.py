"""Nobody leaves before all have come to the end, and nobody fails for what another lacks."""

from __future__ import annotations

import threading

import pytest

from tests.unit.test_worker_entry_stopping import PATIENCE, MemoryBoard
from worker_entry.leaving import together

TASKS = ("worker/0", "worker/1", "worker/2")


def test_all_leave_when_the_last_has_come() -> None:
    board = MemoryBoard()
    left: list[str] = []
    both = threading.Barrier(3)

    def early(task: str) -> None:
        both.wait(PATIENCE)
        together(task, TASKS, board)
        left.append(task)

    threads = [threading.Thread(target=early, args=(task,), daemon=True) for task in TASKS[:2]]
    for thread in threads:
        thread.start()
    both.wait(PATIENCE)
    assert left == []
    together(TASKS[2], TASKS, board)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(left) == ["worker/0", "worker/1"]


class BrokenBoard(MemoryBoard):
    def get(self, key: str) -> str:
        raise RuntimeError(f"the cluster broke before {key}")


def test_a_task_that_died_at_the_end_fails_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    together("worker/0", TASKS, BrokenBoard())
    assert capsys.readouterr().out == "another task did not end well: RuntimeError\n"
