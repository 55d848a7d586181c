"""The seam for time: clocks, randomness, threads, and every wait. The simulator replaces it."""

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
    """This machine's time. Code that waits or needs the time uses this class."""

    def now(self) -> float:
        """Return seconds of a monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def between(self, low: float, high: float) -> float:
        """Return a random number, which spreads out what many hosts do at once."""
        return random.uniform(low, high)  # noqa: S311 - no secret

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def result(self, future: Future[T], timeout: float | None = None) -> T:
        """Wait for a future's result; raise its exception, or TimeoutError."""
        return future.result(timeout)

    def done(self, future: Future[T], timeout: float | None) -> bool:
        """Wait for a future; return True if it has ended, successfully or not."""
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
        """Wait for bytes; return True if there are any."""
        return bool(select.select([descriptor], [], [], timeout)[0])

    def post(self, call: Callable[[], object]) -> None:
        """Make a call: at once, or in the deciding thread if there is one."""
        call()

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Start a thread that does not keep the process alive; raise OSError if the system refuses."""
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # Python raises no specific type for that.
            raise OSError(errno.EAGAIN, str(error)) from error
        return thread

    def join(self, thread: threading.Thread, timeout: float) -> None:
        thread.join(timeout)


SYSTEM = Clock()
