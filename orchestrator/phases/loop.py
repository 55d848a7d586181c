"""The keeper's loop: one thread decides; events elsewhere reach it as messages.

A message is an item, which the current phase takes, or a call, which the keeper's thread makes during its
next wait of any kind.
"""

import heapq
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias, TypeVar

from msgspec import Struct

from orchestrator.clock import SYSTEM, Clock
from orchestrator.fleet import Lost, Session, TaskNews
from orchestrator.value import Value

T = TypeVar("T")
_LONG = 3600.0  # seconds; the longest single wait


class ViewerRequest(Value):
    """A viewer has requested the end of the run."""


class Watched(Value):
    """A viewer has requested what the tasks are doing now."""


class Reconnected(Value):
    session: Session


Item: TypeAlias = TaskNews | Lost | ViewerRequest | Watched | Reconnected


class Loop(Clock):
    """The keeper's clock: messages are handled in every wait of the thread that created it.

    A host whose frames fill it is no longer read from. Any thread may call `put` and `post`.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        for name in ("now", "wall", "between", "take", "changed", "readable", "start", "join"):
            setattr(self, name, getattr(clock, name))  # these do not depend on what arrives
        self._owner = threading.get_ident()
        self._arrived: queue.SimpleQueue[Item | Callable[[], object]] = queue.SimpleQueue()
        self._items: deque[Item] = deque()  # for `get`: arrived while something else was waited for
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def put(self, item: Item) -> None:
        if isinstance(item, TaskNews):
            item.session.backlog.add(item.payload)
        self._arrived.put(item)

    def post(self, call: Callable[[], object]) -> None:
        self._arrived.put(call)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call later, during a wait of the keeper's thread."""
        self._count += 1
        heapq.heappush(self._timers, (self.now() + seconds, self._count, call))

    def when_done(self, future: Future[T], call: Callable[[Future[T]], object]) -> None:
        """Make a call with a future that has ended, during a wait of the keeper's thread."""
        future.add_done_callback(lambda _: self.post(partial(call, future)))

    def get(self, timeout: float) -> Item:
        """Return the next item; raise `queue.Empty` if none arrives in time."""
        deadline = self.now() + timeout
        while not self._items:
            if not self._handle_one(deadline):
                raise queue.Empty
        item = self._items.popleft()
        if isinstance(item, TaskNews):
            item.session.backlog.take(item.payload)
        return item

    def _handle_one(self, deadline: float) -> bool:
        """Handle one message or timer; return False if none came before the deadline."""
        now, due = self.now(), self._timers[0][0] if self._timers else math.inf
        if due <= now:
            heapq.heappop(self._timers)[2]()
            return True
        try:
            message = self._clock.take(self._arrived, max(0.0, min(deadline - now, due - now, _LONG)))
        except queue.Empty:
            return self.now() < deadline
        if isinstance(message, Struct):
            self._items.append(message)
        else:
            message()
        return True

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        deadline = math.inf if timeout is None else self.now() + timeout
        while not ready():
            if not self._handle_one(deadline):
                return ready()
        for _ in range(self._arrived.qsize()):  # sent before it was ready
            self._handle_one(0.0)
        return True

    def _on_other_thread(self) -> bool:
        return threading.get_ident() != self._owner

    # --- Clock ---

    def sleep(self, seconds: float) -> None:
        if self._on_other_thread():
            self._clock.sleep(seconds)
        else:
            self._wait(lambda: False, seconds)

    def result(self, future: Future[T], timeout: float | None = None) -> T:
        if self._on_other_thread():
            return self._clock.result(future, timeout)
        if not self.done(future, timeout):
            raise TimeoutError
        return future.result(0)

    def done(self, future: Future[T], timeout: float | None) -> bool:
        if self._on_other_thread():
            return self._clock.done(future, timeout)
        if not future.done():
            future.add_done_callback(lambda _: self.post(lambda: None))
        return self._wait(future.done, timeout)

    def flagged(self, flag: threading.Event, timeout: float) -> bool:
        """Wait for a flag; the keeper's thread only notices one that its own calls set."""
        if self._on_other_thread():
            return self._clock.flagged(flag, timeout)
        return self._wait(flag.is_set, timeout)
