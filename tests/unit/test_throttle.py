"""How fast bytes leave that are held up."""

from __future__ import annotations

import pytest

from orchestrator.sync import Throttle


class Day:
    """A clock that only waiting and working move on."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("work", "wanted"),
    [(0.0, 20.0), (0.19, 20.0), (0.3, 30.0)],
    ids=["none", "nearly all", "more than the limit takes"],
)
def test_one_thread_that_works_between_two_pieces_has_the_whole_line(work: float, wanted: float) -> None:
    day = Day()
    throttle = Throttle(20e6, day.clock, day.spend)
    for _ in range(100):
        throttle.wait(4_000_000)
        day.spend(work)
    assert day.now - 100.0 == pytest.approx(wanted, rel=0.03)
