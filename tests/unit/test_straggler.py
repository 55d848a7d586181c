"""Whom the others wait for: decided by what tasks report, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from orchestrator import events as ev
from orchestrator.events import Stamped
from orchestrator.model import TaskId
from orchestrator.render.region import straggling
from orchestrator.run import straggler
from orchestrator.run.records import reported
from orchestrator.run.view import View, apply, replay

# As three tasks on two busy processors reported it: an even gang, and one whose third task was slow.
EVEN = {
    "worker/0": (0.735, 0.779, 0.813, 0.724, 0.748, 0.793, 0.697, 0.722, 0.736, 0.713, 0.633),
    "worker/1": (0.802, 0.761, 0.723, 0.754, 0.797, 0.759, 0.748, 0.752, 0.753, 0.777, 0.751),
    "worker/2": (0.802, 0.789, 0.834, 0.733, 0.725, 0.743, 0.763, 0.777, 0.789, 0.754, 0.639),
}
UNEVEN = {
    "worker/0": (0.851, 0.891, 0.852, 0.887, 0.806, 0.805, 0.777, 0.88, 0.821, 0.824, 0.842),
    "worker/1": (0.78, 0.873, 0.844, 0.887, 0.851, 0.837, 0.798, 0.853, 0.845, 0.829, 0.897),
    "worker/2": (0.577, 0.641, 0.533, 0.664, 0.556, 0.479, 0.453, 0.628, 0.579, 0.498, 0.59),
}


@pytest.mark.parametrize(
    ("shares", "tasks"),
    [
        ({}, None),
        ({"worker/0": (0.0,) * 9}, None),
        (EVEN, None),
        (UNEVEN, ("worker/2",)),
        ({task: said[:6] for task, said in UNEVEN.items()}, None),
        ({**UNEVEN, "worker/1": ()}, None),
        ({"worker/0": (0.5,) * 9, "worker/1": (0.02,) * 9}, ("worker/1",)),
        ({"worker/0": (0.2,) * 9, "worker/1": (0.02,) * 9}, None),  # a fifth longer
        ({"worker/0": (0.95,) * 9, "worker/1": (0.85,) * 9}, None),  # the network is what takes long
        (
            {f"worker/{n}": ((0.6,) if n < 2 else (0.05,)) * 9 for n in range(4)},
            ("worker/2", "worker/3"),
        ),
        ({f"worker/{n}": ((0.6,) if n < 1 else (0.05,)) * 9 for n in range(4)}, None),  # one is fast
    ],
)
def test_whom_the_others_wait_for(shares: Mapping[str, Sequence[float]], tasks: Sequence[str] | None) -> None:
    found = straggler.find(shares)
    assert (found and found.tasks) == tasks


def gang(shares: Mapping[str, Sequence[float]]) -> View:
    begun: list[ev.Event] = [ev.TaskStarted(task, f"gpu-{task[-1]}", "1", 1) for task in shares]
    steps: list[ev.Event] = [
        ev.TaskProgressed(task, step, 0.5, 9.0, waiting=share)
        for task, said in shares.items()
        for step, share in enumerate(said)
    ]
    return replay([Stamped(1.0, event) for event in (*begun, *steps)])


def test_it_is_said_with_its_host_while_all_of_them_train() -> None:
    view = gang(UNEVEN)
    assert view.straggler is not None
    line = straggling(view, view.straggler)
    assert line == "worker/2 (gpu-2) holds the others up: they wait for about 26 % of each step"
    ended = ev.TaskExited("worker/0", "gpu-0", "1", 0, None, "", seconds=3.0, ended=1.0, stopped=False)
    assert apply(view, ended, 2.0).straggler is None
    assert gang(EVEN).straggler is None


def test_only_the_last_reports_count() -> None:
    view = gang({task: (*((0.5,) * 40), *said) for task, said in UNEVEN.items()})
    assert {len(task.waits) for task in view.tasks.values()} == {straggler.KEPT}


@pytest.mark.parametrize(
    ("said", "share"), [("0.5", 0.5), ("1", 1.0), ("1.5", None), ("-1", None), ('"a"', None), ("null", None)]
)
def test_a_share_is_one_or_nothing(said: str, share: float | None) -> None:
    line = f'{{"kind": "progress", "step": 1, "waiting": {said}}}'
    event = reported(TaskId.parse("worker/0"), line.encode())
    assert isinstance(event, ev.TaskProgressed)
    assert event.waiting == share
