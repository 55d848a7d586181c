"""The keeper's loop: one thread decides; whatever happens elsewhere reaches it as a message.

A message is an item, which the phase of the moment takes, or a call, which the keeper's thread makes in its
next wait, whatever it waits for.
"""

from __future__ import annotations

import heapq
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

from msgspec import Struct

from orchestrator.clock import SYSTEM, Clock
from orchestrator.errors import HostError
from orchestrator.fleet import Lost, Session, TaskNews

T = TypeVar("T")
_LONG = 3600.0  # seconds of one wait, at most


class ViewerRequest(Struct, frozen=True):
    """A viewer has asked for the end of the run."""


class Watched(Struct, frozen=True):
    """A viewer has asked what the tasks do now."""


class Reconnected(Struct, frozen=True):
    session: Session


class Followed(Struct, frozen=True):
    """An agent's answer to `follow`: tasks that its node knows nothing of, or why it cannot."""

    session: Session
    missing: tuple[str, ...] = ()
    error: HostError | None = None


Item: TypeAlias = TaskNews | Lost | ViewerRequest | Watched | Reconnected | Followed


class Loop(Clock):
    """The clock of a keeper: messages are handled in every wait of the thread that made it.

    A host whose frames fill it is no longer read from. `put` and `post` may be called by any thread.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._owner = threading.get_ident()
        self._arrived: queue.SimpleQueue[Item | Callable[[], object]] = queue.SimpleQueue()
        self._kept: deque[Item] = deque()  # for `get`: they came while something else was waited for
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def put(self, item: Item) -> None:
        if isinstance(item, TaskNews):
            item.session.backlog.add(item.payload)
        self._arrived.put(item)

    def post(self, call: Callable[[], object]) -> None:
        self._arrived.put(call)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call later, in a wait of the keeper's thread."""
        self._count += 1
        heapq.heappush(self._timers, (self.now() + seconds, self._count, call))

    def get(self, timeout: float) -> Item:
        """The next item; raise `queue.Empty` when none comes in time."""
        deadline = self.now() + timeout
        while not self._kept:
            if not self._turn(deadline) and not self._kept:
                raise queue.Empty
        item = self._kept.popleft()
        if isinstance(item, TaskNews):
            item.session.backlog.take(item.payload)
        return item

    def _turn(self, deadline: float) -> bool:
        """Handle one message or timer; False when the time is over and none came."""
        now, due = self.now(), self._timers[0][0] if self._timers else math.inf
        if due <= now:
            heapq.heappop(self._timers)[2]()
            return True
        try:
            message = self._clock.take(self._arrived, max(0.0, min(deadline - now, due - now, _LONG)))
        except queue.Empty:
            return self.now() < deadline
        if isinstance(message, Struct):
            self._kept.append(message)
        else:
            message()
        return True

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        deadline = math.inf if timeout is None else self.now() + timeout
        while not ready():
            if not self._turn(deadline):
                return ready()
        for _ in range(self._arrived.qsize()):  # what was sent before it was ready
            self._turn(0.0)
        return True

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._owner

    # --- the seam ---

    def now(self) -> float:
        return self._clock.now()

    def wall(self) -> float:
        return self._clock.wall()

    def between(self, low: float, high: float) -> float:
        return self._clock.between(low, high)

    def sleep(self, seconds: float) -> None:
        if self._elsewhere():
            self._clock.sleep(seconds)
        else:
            self._wait(lambda: False, seconds)

    def result(self, future: Future[T], timeout: float | None = None) -> T:
        if self._elsewhere():
            return self._clock.result(future, timeout)
        if not self.done(future, timeout):
            raise TimeoutError
        return future.result(0)

    def done(self, future: Future[T], timeout: float | None) -> bool:
        if self._elsewhere():
            return self._clock.done(future, timeout)
        if not future.done():
            future.add_done_callback(lambda _: self.post(lambda: None))
        return self._wait(future.done, timeout)

    def take(self, items: queue.SimpleQueue[T], timeout: float) -> T:
        return self._clock.take(items, timeout)

    def flagged(self, flag: threading.Event, timeout: float) -> bool:
        """Wait for a flag; the keeper's thread for one that it sets itself, in a call."""
        if self._elsewhere():
            return self._clock.flagged(flag, timeout)
        return self._wait(flag.is_set, timeout)

    def changed(self, condition: threading.Condition) -> None:
        self._clock.changed(condition)

    def readable(self, descriptor: int, timeout: float) -> bool:
        return self._clock.readable(descriptor, timeout)

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        return self._clock.start(name, work, *arguments)

    def join(self, thread: threading.Thread, timeout: float) -> None:
        self._clock.join(thread, timeout)
