from __future__ import annotations

import pytest

from orchestrator.model import Completion, TaskId
from orchestrator.run import leavers
from orchestrator.run.hang import Life

A, B, C = (TaskId.parse(f"worker/{index}") for index in range(3))
STORIES = [
    ("all live", {A: 5.0, B: 5.0}, {}, 90.0, ""),
    ("the others speak", {A: 85.0}, {B: 60.0}, 90.0, ""),
    ("it has just left", {A: 5.0}, {B: 80.0}, 90.0, ""),
    ("nobody is left", {}, {A: 5.0, B: 6.0}, 90.0, ""),
    (
        "one left",
        {A: 5.0, C: 6.0},
        {B: 60.0},
        90.0,
        "worker/1 has finished, and worker/[0,2] seem to wait for that: no word for 30 s",
    ),
    (
        "two left",
        {A: 65.0},
        {B: 60.0, C: 61.0},
        90.0,
        "worker/[1-2] have finished, and worker/0 seems to wait for that: no word for 25 s",
    ),
]


@pytest.mark.parametrize(("story", "heard", "left", "now", "said"), STORIES)
def test_who_left_and_who_waits(
    story: str, heard: dict[TaskId, float], left: dict[TaskId, float], now: float, said: str
) -> None:
    lives = {task: Life(at) for task, at in heard.items()}
    assert leavers.missed(lives, left, now, Completion.ALL) == said, story
    assert leavers.missed(lives, left, now, Completion.CHIEF) == ""
