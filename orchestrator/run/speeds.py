"""Which hosts compute so much more slowly than the others that a synchronous gang loses by it. Pure.

Time on the wall says that only of a machine that has nothing else to do: on a busy one, and where several
hosts are one machine, windows of the same work were seen to differ by eight. So a window counts when its
threads hardly waited for a processor, or when a quota of the host's own made them wait. Otherwise it is the
processor time of a step that is compared, which was seen to differ by less than two. A host that is not
named may be slow; one that is named is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high, median_low, quantiles
from typing import Any

WINDOWS = 32  # at most
SLOW = 1.4  # times slower on the wall: 1.5 is to be found, and a measurement is off by some percent
SLOW_PROCESSOR = 2.0  # times the processor time of a step, of a host that was disturbed
_QUIET = 0.25  # share of its time in which a thread that could run did not
_HELD = 0.5  # share of the periods in which a quota was used up
_LEAST = 3  # windows that have to count
_OTHERS = 0.6  # share of waiting from which other programs are the reason
_TOLD = 1.25  # times the processor time from which that is the reason
_WORTH = 1.1  # times more work per second without a host, before it is proposed to leave it out

PROCESSOR = "the same work takes more processor time there"
QUOTA = "the quota of processor time (of a container or a group of processes) is used up there"
BUSY = "other programs use the processors there"
IDLE = "the same work takes as much processor time there, but longer: it has fewer, or something stops it"


@dataclass(frozen=True)
class Window:
    """A fraction of a second of equal steps."""

    rate: float  # steps a second
    cpu: float  # seconds of processors for a step
    waited: float | None = None  # share of waiting for a processor; None: not known
    held: float | None = None  # share of the periods of its group's quota in which it was used up

    @property
    def sound(self) -> bool:
        return all(map(_positive, (self.rate, self.cpu))) and all(map(_share, (self.waited, self.held)))

    @property
    def counts(self) -> bool:
        """Whether its rate is the host's own."""
        return self.throttled or (self.waited is not None and self.waited < _QUIET)

    @property
    def throttled(self) -> bool:
        return self.held is not None and self.held >= _HELD


@dataclass(frozen=True)
class Sample:
    """How fast a host computes, and when it was measured (seconds since the epoch)."""

    windows: tuple[Window, ...]
    at: float = 0.0
    gpus: int = 0  # that it has; then processor time says nothing

    @property
    def sound(self) -> bool:
        """Whether a stranger's numbers are ones that can be compared."""
        return 0 < len(self.windows) <= WINDOWS and all(one.sound for one in self.windows)

    @property
    def rate(self) -> float:
        """Of what counts; else of everything, which can only be too low."""
        return median(self.rates)

    @property
    def rates(self) -> list[float]:
        return [one.rate for one in (self.own or self.windows)]

    @property
    def own(self) -> list[Window]:
        """The windows that count, where they are enough."""
        found = [one for one in self.windows if one.counts]
        return found if len(found) >= _LEAST else []

    @property
    def cpu(self) -> float:
        return median(one.cpu for one in self.windows)

    @property
    def waited(self) -> float:
        """The least of its windows; 0 where it is not known."""
        return min(0.0 if one.waited is None else one.waited for one in self.windows)


@dataclass(frozen=True)
class Slow:
    """A host that holds the others up."""

    host: str
    speed: float  # times as fast as the others
    why: str


@dataclass(frozen=True)
class GangLoss:
    """What a gang loses by its slow hosts, and whether it would compute more without them."""

    share: float
    leave_out: bool


def parse(said: Any, at: float) -> Sample | None:
    """What a stranger says of its speed; None for anything that is no measurement."""
    if not isinstance(said, dict):
        return None
    columns = [said.get(name) for name in ("rate", "cpu", "waited", "held")]
    lists = [column for column in columns if isinstance(column, list) and len(column) <= WINDOWS]
    if len(lists) < len(columns) or len({len(column) for column in lists}) != 1:
        return None
    gpus = said.get("gpus")
    windows = tuple(Window(*row) for row in zip(*lists, strict=True))
    sample = Sample(windows, at, gpus if isinstance(gpus, int) and 0 < gpus < 1 << 10 else 0)
    return sample if sample.sound else None


def better(one: Sample, other: Sample) -> Sample:
    """Of two measurements of a host the one that was disturbed less: nothing makes a machine faster."""
    if bool(one.own) != bool(other.own):
        return one if one.own else other
    return max(one, other, key=lambda sample: sample.rate if sample.own else 1 / sample.cpu)


def slow(samples: Mapping[str, Sample], lone: Collection[str] = ()) -> list[Slow]:
    """The hosts that hold the others up, of hosts that do equal work, the slowest first.

    `lone` are those whose machine has no other host of the run: what disturbs them disturbs nobody else.
    """
    if len(samples) < 2:
        return []
    usual = median_high(one.rate for one in samples.values())
    low = median_low(one.cpu for one in samples.values())
    steady = [one for one in samples.values() if one.rate >= usual]
    floor = min(_quartiles(one.rates)[0] for one in steady)
    gpus = any(one.gpus for one in samples.values())
    found = []
    for name, one in samples.items():
        work = one.cpu / low
        apart = one.rate * SLOW <= usual and _quartiles(one.rates)[1] < floor
        if one.own and apart:
            found.append(Slow(name, one.rate / usual, _why(one, 1.0 if gpus else work)))
        elif not one.own and not gpus and work >= SLOW_PROCESSOR and _steadily(one, low):
            found.append(Slow(name, 1 / work, PROCESSOR))
        elif name in lone and apart and one.waited >= _OTHERS:
            found.append(Slow(name, one.rate / usual, BUSY))
    return sorted(found, key=lambda one: (one.speed, one.host))


def loss(found: Sequence[Slow], hosts: int) -> GangLoss:
    """What the slow ones of so many hosts cost, when all wait for the slowest in every step."""
    pace = min(one.speed for one in found)
    left = hosts - len(found)
    return GangLoss(1 - pace, left > 0 and left >= hosts * pace * _WORTH)


def _why(one: Sample, work: float) -> str:
    if sum(window.throttled for window in one.own) * 2 > len(one.own):
        return QUOTA
    return PROCESSOR if work >= _TOLD else IDLE


def _steadily(one: Sample, low: float) -> bool:
    """Whether nearly all of its windows say so."""
    return _quartiles([window.cpu for window in one.windows])[0] >= low * SLOW


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper one."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, last = quantiles(values, n=4, method="inclusive")
    return first, last


def _positive(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 1e-9 < value < 1e9
    )


def _share(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value <= 1)
