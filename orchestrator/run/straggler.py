"""Which task of a synchronous gang the others wait for, by the shares of waiting that they report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

KEPT = 15  # reports of a task
_LEAST = 7  # reports of each task before anything is said: some seconds are no verdict
_SLOWER = 1.4  # times as long as any other task computes
_WORTH = 0.2  # share of a step that could be saved


@dataclass(frozen=True)
class Straggler:
    """The tasks that the others wait for, and the share of every step that is lost by it."""

    tasks: tuple[str, ...]
    lost: float


def find(shares: Mapping[str, Sequence[float]]) -> Straggler | None:
    """Of the shares of waiting of every task that trains, the newest last; None where nobody stands out.

    All steps take all tasks the same time, so what is no waiting is what a task itself takes.
    """
    if len(shares) < 2 or any(len(said) < _LEAST for said in shares.values()):
        return None
    takes = {task: 1 - median(said[-KEPT:]) for task, said in shares.items()}
    ranked = sorted(takes, key=lambda task: -takes[task])
    for number in range(1, len(ranked) // 2 + 1):
        slow, next_one = takes[ranked[number - 1]], takes[ranked[number]]
        if slow >= _SLOWER * next_one and takes[ranked[0]] - next_one >= _WORTH:
            return Straggler(tuple(sorted(ranked[:number])), takes[ranked[0]] - next_one)
    return None
