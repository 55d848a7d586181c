"""Which host holds a gang up, and which one was only disturbed while it was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from orchestrator.phases.pace import _hint
from orchestrator.run.speeds import BUSY, IDLE, PROCESSOR, QUOTA, Sample, Window, better, loss, parse, slow

# Windows of equal work on a machine of two processors with ten processes that wanted them, as measured.
BUSY_RATES = (
    ((53.6, 42.0, 31.8, 27.4, 31.3, 40.2, 69.8, 79.8), (6.1, 6.1, 7.4, 6.5, 8.4, 6.1, 5.4, 5.3)),
    ((73.9, 66.0, 46.7, 90.4, 94.5, 78.6, 91.4, 98.8), (6.5, 6.4, 5.5, 6.1, 5.8, 6.0, 6.1, 5.7)),
    ((214.2, 155.4, 39.6, 84.8, 87.6, 78.2, 82.3, 93.9), (4.7, 4.9, 5.5, 5.9, 5.8, 5.9, 6.2, 5.8)),
    ((74.5, 69.9, 47.3, 170.8, 174.8, 177.8, 172.6, 158.6), (6.4, 6.4, 5.6, 5.0, 4.9, 4.9, 5.0, 5.1)),
)
NOISE = (1.0, 0.93, 1.06, 0.98, 1.03, 0.9)


def sample(rate: float, cpu: float = 0.005, waited: float | None = 0.03, held: float | None = 0.0) -> Sample:
    return Sample(tuple(Window(rate * noise, cpu / noise, waited, held) for noise in NOISE))


def crowded(number: int, slower: float = 1.0) -> Sample:
    rates, costs = BUSY_RATES[number % 4]
    return Sample(
        tuple(
            Window(rate / slower, slower * cost / 1000, 0.75, 0.0)
            for rate, cost in zip(rates, costs, strict=True)
        )
    )


FOUR = {f"node{number}": sample(100 + number) for number in range(1, 5)}
CROWD = {f"node{number}": crowded(number) for number in range(4)}


@pytest.mark.parametrize(
    ("samples", "lone", "found"),
    [
        ({}, (), {}),
        ({"node1": sample(1)}, (), {}),
        (FOUR, (), {}),
        # Half as fast again, and a tenth: the first is worth a word.
        ({**FOUR, "node4": sample(68, 0.0075)}, (), {"node4": PROCESSOR}),
        ({**FOUR, "node4": sample(68)}, (), {"node4": IDLE}),
        ({**FOUR, "node4": sample(90, 0.0055)}, (), {}),
        ({**FOUR, "node4": sample(80, 0.006)}, (), {}),
        # A quota makes its threads wait, and is its own.
        ({**FOUR, "node4": sample(30, waited=0.9, held=1.0)}, (), {"node4": QUOTA}),
        ({**FOUR, "node4": sample(30, waited=0.9, held=0.3)}, (), {}),
        # What disturbs a machine with several hosts is no property of one of them.
        ({**FOUR, "node4": sample(30, waited=0.7)}, (), {}),
        ({**FOUR, "node4": sample(30, waited=0.7)}, ("node4",), {"node4": BUSY}),
        ({**FOUR, "node4": sample(30, waited=0.4)}, ("node4",), {}),
        ({**FOUR, "node4": sample(30, waited=None, held=None)}, (), {}),
        # Measured on one busy machine, where the wall says nothing at all.
        (CROWD, (), {}),
        ({**CROWD, "alone": sample(214, 0.0047)}, (), {}),
        ({**CROWD, "node1": crowded(1, 1.5)}, (), {}),
        ({**CROWD, "node1": crowded(1, 3)}, (), {"node1": PROCESSOR}),
        # Two kinds of machines: the slower half holds the other up; one fast machine makes no other slow.
        ({**FOUR, "node3": sample(60), "node4": sample(60)}, (), {"node3": IDLE, "node4": IDLE}),
        ({**FOUR, "node4": sample(400, 0.0012)}, (), {}),
        ({"node1": sample(100), "node2": sample(60)}, (), {"node2": IDLE}),
    ],
)
def test_who_is_slow(samples: Mapping[str, Sample], lone: Collection[str], found: Mapping[str, str]) -> None:
    assert {one.host: one.why for one in slow(samples, lone)} == found


def test_a_window_or_two_are_no_verdict() -> None:
    """A host whose good windows are as good as the others' was disturbed."""
    windows = sample(100).windows[:3] + sample(50).windows[:3]
    assert slow({**FOUR, "node4": Sample(windows)}) == []


def test_beside_gpus_processor_time_says_nothing() -> None:
    gang = {name: Sample(one.windows, gpus=1) for name, one in FOUR.items()}
    dear = sample(100, 0.02, waited=0.7)
    assert slow({**gang, "node4": Sample(dear.windows, gpus=1)}) == []
    (one,) = slow({**gang, "node4": Sample(sample(50, 0.02).windows, gpus=1)})
    assert one.why == IDLE


def test_how_much_is_lost_and_whether_to_leave_the_slow_ones_out() -> None:
    (one,) = slow({**FOUR, "node4": sample(61.2)})
    assert one.speed == pytest.approx(0.594, abs=0.01)
    assert loss([one], 4).share == pytest.approx(0.406, abs=0.01)
    assert loss([one], 4).leave_out, "3 hosts at full speed against 4 at 0.6"
    assert not loss([one], 2).leave_out, "1 against 1.2"
    assert not loss([one], 1).leave_out


def test_of_two_measurements_the_less_disturbed_one_counts() -> None:
    quiet, loud = sample(40), sample(90, waited=0.6)
    assert better(loud, quiet) is quiet
    assert better(quiet, sample(60)).rate > 50
    assert better(crowded(0), crowded(3)).cpu < 0.0055


@pytest.mark.parametrize(
    "said",
    [
        None,
        "fast",
        {},
        {"rate": [], "cpu": [], "waited": [], "held": []},
        {"rate": [1.0], "cpu": [1.0], "waited": [None]},
        {"rate": [1.0, 2.0], "cpu": [1.0], "waited": [None], "held": [None]},
        {"rate": [1.0] * 99, "cpu": [1.0] * 99, "waited": [None] * 99, "held": [None] * 99},
        {"rate": [0.0], "cpu": [1.0], "waited": [None], "held": [None]},
        {"rate": [float("nan")], "cpu": [1.0], "waited": [None], "held": [None]},
        {"rate": ["1"], "cpu": [1.0], "waited": [None], "held": [None]},
        {"rate": [True], "cpu": [1.0], "waited": [None], "held": [None]},
        {"rate": [1.0], "cpu": [10**40], "waited": [None], "held": [None]},
        {"rate": [1.0], "cpu": [1.0], "waited": [1.5], "held": [None]},
        {"rate": [1.0], "cpu": [1.0], "waited": [[]], "held": [None]},
    ],
)
def test_a_stranger_may_say_anything(said: Any) -> None:
    assert parse(said, 1.0) is None


def test_what_is_said_is_read() -> None:
    said = {"rate": [10, 20.0], "cpu": [0.1, 0.05], "waited": [0, None], "held": [None, 1], "gpus": 2}
    assert parse(said, 7.0) == Sample((Window(10, 0.1, 0), Window(20.0, 0.05, None, 1)), 7.0, 2)
    assert parse({**said, "gpus": "many"}, 7.0) == Sample(
        (Window(10, 0.1, 0), Window(20.0, 0.05, None, 1)), 7.0
    )


def test_the_hint_is_a_thing_to_do() -> None:
    assert _hint("node4", leave_out=True, old=False) == "leave out node4: `--exclude node4`"
    assert _hint("gpu-[3-4]", leave_out=True, old=True) == (
        "leave out gpu-[3-4]: `--exclude 'gpu-[3-4]'`; `--validate always` measures again"
    )
    assert "`orchestrate exec --only node2 -- uptime`" in _hint("node2", leave_out=False, old=False)
