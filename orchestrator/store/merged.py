"""A run's folder as one stream of events in which the lines of all tasks come in the order of their times."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.events import LogLine, Stamped, TaskExited
from orchestrator.store.reader import RunReader

WAIT = 1.0  # seconds that everything waits for earlier lines of a slower host


@dataclass
class MergedReader(RunReader):
    """As `RunReader`, but in the order of times; what comes later than WAIT comes as it comes.

    Events stay in their order among themselves, and a task's lines come before its TaskExited.
    """

    _held: list[tuple[float, int, Stamped]] = field(default_factory=list)
    _count: int = 0
    _event: float = 0.0  # the time of the last event that is no line
    _last: dict[str, float] = field(default_factory=dict)  # task -> the time of its last line

    def poll(self) -> Iterator[Stamped]:
        for stamped in super().poll():
            at, event = stamped.at, stamped.event
            if isinstance(event, LogLine):
                self._last[event.task] = max(at, self._last.get(event.task, 0.0))
            else:
                if isinstance(event, TaskExited):
                    at = max(at, self._last.get(event.task, 0.0))
                at = self._event = max(at, self._event)
            self._count += 1
            heapq.heappush(self._held, (at, self._count, stamped))
        yield from self._release(float("inf") if self.ended else time.time() - WAIT)

    def rest(self) -> Iterator[Stamped]:
        yield from self._release(float("inf"))

    def _release(self, until: float) -> Iterator[Stamped]:
        while self._held and self._held[0][0] <= until:
            yield heapq.heappop(self._held)[2]
