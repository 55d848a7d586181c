from __future__ import annotations

import pytest

from orchestrator.events import TaskExited
from orchestrator.model import Completion, TaskId
from orchestrator.run.gang import GangDecision, decide, succeeded


def end(code: int | None, signal: int | None = None, lost: str = "", *, stopped: bool = False) -> TaskExited:
    return TaskExited("any/0", "z-01", "1", code, signal, lost, seconds=1, ended=10, stopped=stopped)


OK = end(0)
BAD = end(3)
KILLED = end(None, 9)
LOST = end(None, None, "supervisor gone")
STOPPED = end(None, 15, stopped=True)

WORKERS = "worker/0 worker/1"
CLUSTER = "chief/0 worker/0 ps/0"
EVALUATED = "worker/0 worker/1 evaluator/0"


def tasks(text: str) -> list[TaskId]:
    return [TaskId.parse(word) for word in text.split()]


@pytest.mark.parametrize(
    ("who", "ends", "completion", "decision", "good"),
    [
        (WORKERS, {}, Completion.ALL, GangDecision.GO_ON, False),
        (WORKERS, {"worker/0": OK}, Completion.ALL, GangDecision.GO_ON, False),
        (WORKERS, {"worker/0": OK, "worker/1": OK}, Completion.ALL, GangDecision.ENDED, True),
        (WORKERS, {"worker/1": BAD}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/1": KILLED}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/1": LOST}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/0": STOPPED, "worker/1": BAD}, Completion.ALL, GangDecision.ENDED, False),
        (WORKERS, {"worker/0": STOPPED, "worker/1": STOPPED}, Completion.ALL, GangDecision.ENDED, False),
        (CLUSTER, {"worker/0": OK}, Completion.CHIEF, GangDecision.GO_ON, False),
        (CLUSTER, {"chief/0": OK}, Completion.CHIEF, GangDecision.STOP_COMPLETE, True),
        (
            CLUSTER,
            {"chief/0": OK, "worker/0": STOPPED, "ps/0": STOPPED},
            Completion.CHIEF,
            GangDecision.ENDED,
            True,
        ),
        (CLUSTER, {"ps/0": KILLED}, Completion.CHIEF, GangDecision.STOP_FAILED, False),
        (EVALUATED, {"worker/0": OK, "worker/1": OK}, Completion.ALL, GangDecision.STOP_COMPLETE, True),
    ],
)
def test_what_the_ends_ask_for(
    who: str, ends: dict[str, TaskExited], completion: Completion, decision: GangDecision, good: bool
) -> None:
    known = {TaskId.parse(task): end for task, end in ends.items()}
    assert decide(tasks(who), known, completion) is decision
    assert succeeded(tasks(who), known, completion) is good
