"""A clock that jumps to the next event, and threads that run one at a time."""

import heapq
import math
import queue
import random
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from orchestrator.clock import Clock

T = TypeVar("T")
EPOCH = 1.8e9  # when a history begins, in seconds since 1970


class GoneError(BaseException):
    """The thread's process was killed, or its history has ended; nothing catches this error."""


class Process:
    """One process of the controller. A killed one never runs again, not even its `finally`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True


class Thread(threading.Thread):
    """A thread that runs only while it has the baton."""

    def __init__(self, process: Process, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.process = process
        self.baton = threading.Lock()
        self.baton.acquire()
        self.over = self.doomed = False
        self.ready: Callable[[], bool] = lambda: True
        self.deadline = math.inf
        self._work = work

    def run(self) -> None:
        self.baton.acquire()
        self._work()

    def is_alive(self) -> bool:
        return not self.over


class Scheduler:
    """Decides which thread or event is next, and advances the time; the dice break ties."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.now = 0.0
        self.shift = 0.0  # of the wall clock
        self.failures: list[str] = []  # exceptions that ended a thread
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._threads: list[Thread] = []
        self._running: Thread | None = None
        self._driver = threading.Lock()
        self._driver.acquire()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + max(0.0, seconds), self._count, call))

    def run(self, over: Callable[[], bool], limit: float) -> bool:
        """Run until `over` returns True; return False if that takes until `limit`."""
        while not over():
            turn = [one for one in self._threads if one.process.alive and self._is_due(one)]
            if turn:
                self._resume(turn[0] if len(turn) == 1 else self.dice.choice(turn))
                continue
            deadlines = [one.deadline for one in self._threads if one.process.alive]
            next_at = min([*deadlines, self._events[0][0] if self._events else math.inf])
            if next_at > limit:
                return False
            self.now = max(self.now, next_at)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
        return True

    def _is_due(self, thread: Thread) -> bool:
        return thread.deadline <= self.now or thread.ready()

    def _resume(self, thread: Thread) -> None:
        self._running = thread
        thread.baton.release()
        self._driver.acquire()
        self._running = None
        if thread.over:
            self._threads.remove(thread)

    def start(self, process: Process, name: str, work: Callable[[], None]) -> Thread:
        def whole() -> None:
            try:
                if not thread.doomed:
                    work()
            except GoneError:
                pass
            except BaseException as error:  # reported as the history's failure
                if not thread.doomed:
                    trace = "".join(traceback.format_exception(error)[-3:])
                    self.failures.append(f"thread {name}: {trace}")
            finally:
                thread.over = True
                self._driver.release()

        thread = Thread(process, name, whole)
        self._threads.append(thread)
        thread.start()
        return thread

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Yield until `ready` returns True, or the timeout expires."""
        me = self._running
        assert me is not None, "only threads of the simulation wait"
        if me.doomed:
            raise GoneError
        me.ready, me.deadline = ready, math.inf if timeout is None else self.now + max(0.0, timeout)
        self._driver.release()
        me.baton.acquire()
        if me.doomed:
            raise GoneError
        return ready()

    def end(self) -> None:
        """End all remaining threads."""
        while self._threads:
            self._threads[-1].doomed = True
            self._resume(self._threads[-1])


class SimulatedClock(Clock):
    """The `Clock` of one process."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process
        self.written: set[int] = set()  # descriptors with something to read

    def now(self) -> float:
        return self._scheduler.now

    def wall(self) -> float:
        return EPOCH + self._scheduler.now + self._scheduler.shift

    def between(self, low: float, high: float) -> float:
        return self._scheduler.dice.uniform(low, high)

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(lambda: False, seconds)

    def result(self, future: Future[T], timeout: float | None = None) -> T:
        self._scheduler.wait(future.done, timeout)
        return future.result(0)

    def done(self, future: Future[T], timeout: float | None) -> bool:
        return self._scheduler.wait(future.done, timeout)

    def take(self, items: queue.SimpleQueue[T], timeout: float) -> T:
        self._scheduler.wait(lambda: not items.empty(), timeout)
        return items.get_nowait()

    def flagged(self, flag: threading.Event, timeout: float) -> bool:
        return self._scheduler.wait(flag.is_set, timeout)

    def changed(self, condition: threading.Condition) -> None:
        condition.release()
        try:
            self._scheduler.wait(lambda: False, 0.05)
        finally:
            condition.acquire()

    def readable(self, descriptor: int, timeout: float) -> bool:
        ready = self._scheduler.wait(lambda: descriptor in self.written, timeout)
        self.written.discard(descriptor)
        return ready

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        return self._scheduler.start(self._process, name, lambda: work(*arguments))

    def join(self, thread: threading.Thread, timeout: float) -> None:
        self._scheduler.wait(lambda: not thread.is_alive(), timeout)
