"""Whether a task floods its log."""

from __future__ import annotations

import pytest

from orchestrator.run.flood import FLOOD, Flow


def frames(rate: float, seconds: float, every: float = 0.05) -> list[list[tuple[int, int]]]:
    """One record each, as a node makes them."""
    count = int(seconds / every)
    return [[(int(rate * every * n), int(1e18 + every * n * 1e9))] for n in range(count)]


@pytest.mark.parametrize(
    ("rate", "seconds", "told"),
    [
        (FLOOD * 2, 10, True),
        (FLOOD * 2, 2, False),
        (FLOOD / 2, 60, False),
        (1e9, 0.5, True),
        (100, 600, False),
    ],
)
def test_a_flood_is_told_once_with_its_rate(rate: float, seconds: float, told: bool) -> None:
    flow = Flow()
    rates = [found for times in frames(rate, seconds) if (found := flow.add(times)) is not None]
    assert len(rates) == told
    assert all(found == pytest.approx(rate, rel=0.1) for found in rates)


def test_a_clock_that_goes_back_begins_anew() -> None:
    flow = Flow()
    assert flow.add([(0, 10**18)]) is None
    assert flow.add([(10**9, 10**18 - 5)]) is None
    assert flow.add([(10**9 + 1000, 10**18 + 10**10)]) is None
