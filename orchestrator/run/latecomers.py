"""Hosts that are clearly behind what their like took to answer: when to say so, and in what words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.ranges import fold

_ALONE = 3.0  # times as long where nobody has answered: far or busy, not away


def due(waited: float, first: float, last_answer: float | None) -> bool:
    """Decide to name the awaited hosts after `waited` seconds; `first` is the earliest moment.

    `last_answer` is how long the slowest took of those that have answered: who takes less than twice as
    long is no news, on a slow network neither.
    """
    return waited >= (first * _ALONE if last_answer is None else max(first, 2 * last_answer))


def words(hosts: Sequence[str]) -> str:
    """Return who is awaited."""
    return f"waiting for {fold(hosts)}, which {'has' if len(hosts) == 1 else 'have'} not answered so far"
