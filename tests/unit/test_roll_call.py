"""Whom a launch waits for as it connects."""

from __future__ import annotations

import queue

import pytest

from orchestrator.events import Event, Noted
from orchestrator.phases.connect import RollCall
from orchestrator.run import latecomers


@pytest.mark.parametrize(
    ("waited", "last_answer", "said"),
    [
        (0.9, 0.1, False),
        (1.0, 0.1, True),
        (1.5, 0.8, False),  # a slow network: the others took as long a moment ago
        (1.6, 0.8, True),
        (2.9, None, False),  # nobody has answered: all are far
        (3.0, None, True),
    ],
)
def test_who_is_behind_the_others_is_named(waited: float, last_answer: float | None, said: bool) -> None:
    assert latecomers.due(waited, 1.0, last_answer) is said


def test_hosts_that_do_not_answer_are_named_once_and_before_their_time_is_over() -> None:
    said: queue.SimpleQueue[Event] = queue.SimpleQueue()
    roll_call = RollCall(["gpu-1", "gpu-2", "gpu-3"], said.put, 0.01)
    roll_call.answered("gpu-1")
    with roll_call:
        assert said.get(timeout=20) == Noted("waiting for gpu-[2-3], which have not answered so far")
        roll_call.answered("gpu-2")
    assert said.empty()


def test_where_all_answer_nothing_is_said() -> None:
    said: list[Event] = []
    other: queue.SimpleQueue[Event] = queue.SimpleQueue()
    roll_call = RollCall(["gpu-1", "gpu-2"], said.append, 0.001)
    roll_call.answered("gpu-1")
    roll_call.answered("gpu-2")
    with roll_call, RollCall(["gpu-3"], other.put, 0.1):
        other.get(timeout=20)  # the first has looked many times by then
    assert said == []
