"""The seam between us and time: clocks, chance, threads, and every wait. A simulator replaces it."""

from __future__ import annotations

import errno
import queue
import random
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """Time as this machine has it. Whatever waits or asks for the time does so here."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def between(self, low: float, high: float) -> float:
        """Return a random number, to spread what many do at once."""
        return random.uniform(low, high)  # noqa: S311 - no secret

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def result(self, future: Future[T], timeout: float | None = None) -> T:
        """Wait for a future's result; raise its error, or TimeoutError."""
        return future.result(timeout)

    def done(self, future: Future[T], timeout: float | None) -> bool:
        """Wait for a future; return True if it has ended, whichever way."""
        return not wait([future], timeout).not_done

    def take(self, items: queue.SimpleQueue[T], timeout: float) -> T:
        """Wait for the next item; raise `queue.Empty` when none comes in time."""
        return items.get(timeout=timeout)

    def flagged(self, flag: threading.Event, timeout: float) -> bool:
        """Wait for a flag; return True if it is set."""
        return flag.wait(timeout)

    def changed(self, condition: threading.Condition) -> None:
        """Wait until a condition, which the caller holds, is notified."""
        condition.wait()

    def readable(self, descriptor: int, timeout: float) -> bool:
        """Wait for bytes; return True if there are some."""
        return bool(select.select([descriptor], [], [], timeout)[0])

    def post(self, call: Callable[[], object]) -> None:
        """Make a call: at once, or in the thread that decides where there is one."""
        call()

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Start a thread that does not keep the process alive; raise OSError where none can be had."""
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # Python has no type of its own for that
            raise OSError(errno.EAGAIN, str(error)) from error
        return thread

    def join(self, thread: threading.Thread, timeout: float) -> None:
        """Wait for a thread's end."""
        thread.join(timeout)


SYSTEM = Clock()
