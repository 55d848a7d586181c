from __future__ import annotations

from typing import Any

import pytest

from orchestrator import wire
from orchestrator.events import TermUnheard
from orchestrator.phases.stop import unheard


def vitals(task: str, term: str, *, tensorflow: bool = False, saved: Any = None) -> wire.TaskVitals:
    told = {"attempt": "1", "task": task, "processes": 1, "cpu": 1.0, "memory": 1, "term": term}
    return wire.read({**told, "tensorflow": tensorflow, "saved": saved}, wire.TaskVitals, "vitals")


CASES: list[tuple[list[wire.TaskVitals], TermUnheard | None]] = [
    ([], None),
    ([vitals("worker/0", "default")], None),
    ([vitals("worker/0", "")], None),  # hidden: nothing is known
    ([vitals("worker/0", "caught")], None),  # by a handler of its own: it may well end
    ([vitals("worker/0", "default", tensorflow=True)], None),  # before the strategy is made
    ([vitals("worker/0", "caught", tensorflow=True)], TermUnheard(("worker/0",), (), ())),
    (
        [
            vitals("worker/1", "ignored", saved={"path": "a.index\x1b[2J", "time_ns": 12_000_000_000}),
            vitals("worker/0", "caught", tensorflow=True),
        ],
        TermUnheard(("worker/0",), ("worker/1",), (("worker/1", "a.index", 10.0),)),
    ),
]


@pytest.mark.parametrize(("tasks", "said"), CASES)
def test_who_does_not_hear_term(tasks: list[wire.TaskVitals], said: TermUnheard | None) -> None:
    assert unheard({one.task: (one, 2.0) for one in tasks}) == said
