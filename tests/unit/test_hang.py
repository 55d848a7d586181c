"""What becomes of tasks together: when they hang, as stories, and what the end of one asks for."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.ends import GangDecision, decide, succeeded
from orchestrator.events import TaskExited
from orchestrator.model import Completion, TaskId
from orchestrator.run import hang

A, B = (TaskId.parse(f"worker/{index}") for index in range(2))
PATIENCE = 10.0

Said = tuple[float, TaskId, int | None]  # when, who, a step or only a line


def after(*story: Said, now: float, since: float = 0.0, completion: Completion = Completion.ALL) -> str:
    lives = {task: hang.Life(0.0) for task in (A, B)}
    for at, task, step in story:
        if step is None:
            hang.heard(lives, task, at)
        else:
            hang.stepped(lives, task, step, at)
    found = hang.look(lives, PATIENCE, now, since=since, completion=completion)
    return f"{found.kind} {','.join(map(str, found.tasks))} {found.seconds:g}" if found else ""


def steps(task: TaskId, *times: float) -> list[Said]:
    return [(at, task, number) for number, at in enumerate(times, 1)]


BOTH = f"{A},{B}"
BEHIND = [*steps(B, 1, 2), *steps(A, *range(1, 30))]
STORIES: list[tuple[str, list[Said], float, str]] = [
    ("they never began", [], 10, f"silent {BOTH} 10"),
    ("one prints: that is life", [(5, A, None)], 14, ""),
    ("both are silent", [(5, A, None), (3, B, 1)], 15, f"silent {BOTH} 10"),
    ("only the chief prints", [(at, A, None) for at in range(60)], 60, ""),
    ("only the chief reports", steps(A, *range(1, 60)), 60, ""),
    ("one stays behind, from the third step of the other on", BEHIND, 29.5, f"lagging {B} 26.5"),
    ("it prints: it is slow, and lives", [*BEHIND, (28, B, None)], 29, ""),
    ("it catches up", [*BEHIND, (28, B, 29)], 29, ""),
    ("it has made such pauses before", [*steps(B, 1, 9), *steps(A, *range(1, 25))], 24.5, ""),
    ("after a long evaluation it is soon there", [*steps(B, 1, 2), *steps(A, 1, 2, 40)], 40.5, ""),
    ("both stopped at one step: silent", [*steps(B, 1, 2), *steps(A, 1, 2)], 13, f"silent {BOTH} 11"),
]


@pytest.mark.parametrize(("name", "story", "now", "verdict"), STORIES, ids=[story[0] for story in STORIES])
def test_stories(name: str, story: list[Said], now: float, verdict: str) -> None:
    assert after(*sorted(story, key=lambda said: said[0]), now=now) == verdict, name


def test_what_was_before_a_host_came_back_is_not_held_against_them() -> None:
    assert after(now=30, since=25) == ""
    assert after(now=30, since=20) == f"silent {BOTH} 10"


def test_tasks_that_step_each_for_itself_do_not_lag() -> None:
    assert after(*sorted(BEHIND), now=29.5, completion=Completion.CHIEF) == ""


def test_parameter_servers_and_evaluators_are_not_watched() -> None:
    chief, worker, ps, evaluator = map(TaskId.parse, ("chief/0", "worker/0", "ps/0", "evaluator/0"))
    assert hang.watched([chief, worker, ps, evaluator]) == {chief, worker}
    assert hang.watched([evaluator]) == {evaluator}


def end(code: int | None, signal: int | None = None, lost: str = "", *, stopped: bool = False) -> TaskExited:
    return TaskExited("any/0", "z-01", "1", code, signal, lost, seconds=1, ended=10, stopped=stopped)


OK, BAD, KILLED, LOST = end(0), end(3), end(None, 9), end(None, None, "supervisor gone")
STOPPED = end(None, 15, stopped=True)
DONE = {"chief/0": OK, "worker/0": STOPPED, "ps/0": STOPPED}

WORKERS = "worker/0 worker/1"
CLUSTER = "chief/0 worker/0 ps/0"
EVALUATED = "worker/0 worker/1 evaluator/0"


@pytest.mark.parametrize(
    ("who", "ends", "completion", "decision", "good"),
    [
        (WORKERS, {"worker/0": OK}, Completion.ALL, GangDecision.GO_ON, False),
        (WORKERS, {"worker/0": OK, "worker/1": OK}, Completion.ALL, GangDecision.ENDED, True),
        (WORKERS, {"worker/1": BAD}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/1": LOST}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/0": STOPPED, "worker/1": BAD}, Completion.ALL, GangDecision.ENDED, False),
        (WORKERS, {"worker/0": STOPPED, "worker/1": STOPPED}, Completion.ALL, GangDecision.ENDED, False),
        (CLUSTER, {"worker/0": OK}, Completion.CHIEF, GangDecision.GO_ON, False),
        (CLUSTER, {"chief/0": OK}, Completion.CHIEF, GangDecision.STOP_COMPLETE, True),
        (CLUSTER, DONE, Completion.CHIEF, GangDecision.ENDED, True),
        (CLUSTER, {"ps/0": KILLED}, Completion.CHIEF, GangDecision.STOP_FAILED, False),
        (EVALUATED, {"worker/0": OK, "worker/1": OK}, Completion.ALL, GangDecision.STOP_COMPLETE, True),
    ],
)
def test_what_the_ends_ask_for(
    who: str, ends: dict[str, TaskExited], completion: Completion, decision: GangDecision, good: bool
) -> None:
    known = {TaskId.parse(task): end for task, end in ends.items()}
    tasks = [TaskId.parse(word) for word in who.split()]
    assert decide(tasks, known, completion) is decision
    assert succeeded(tasks, known, completion) is good
