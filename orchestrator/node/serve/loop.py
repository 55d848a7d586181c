"""One thread that waits for many descriptors and timers; and the bounded output queue."""

from __future__ import annotations

import heapq
import os
import select
import signal
import time
from collections import deque
from typing import Callable

READ = select.POLLIN
WRITE = select.POLLOUT


class Loop:
    """Calls back when a descriptor is ready or a time has come; a callback must never block."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timed = 0  # of two for the same moment the earlier one comes first

    def watch(self, fd: int, what: int, call: Callable[[], None]) -> None:
        """Call when `fd` is ready for READ or WRITE, or broken; repeatedly until `unwatch`."""
        self._calls[fd] = call
        self._poll.register(fd, what)

    def unwatch(self, fd: int) -> None:
        """Idempotent; must come before the descriptor is closed."""
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, later."""
        self._timed += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._timed, call))

    def step(self, most: float = 86_400.0) -> None:
        """Wait for the next event, at most `most` seconds, and handle everything that has happened."""
        if self._timers:
            most = min(most, self._timers[0][0] - time.monotonic())
        # Rounded up, so that waking early is no busy loop.
        ready = [(fd, self._calls.get(fd)) for fd, _ in self._poll.poll(max(0, int(most * 1000) + 1))]
        for fd, call in ready:
            # An earlier callback may have closed it, and another descriptor may have its number by now.
            if call is not None and self._calls.get(fd) == call:
                call()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()


def wake_on(*signals: int) -> int:
    """Unblock these signals; each writes its number to the pipe that is returned."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for signum in signals:
        signal.signal(signum, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return read


class Outbox:
    """Bytes on their way to a non-blocking descriptor, in order.

    Callers with much data ask for `room` first. `broken` is called when the reader is gone; by default the
    rest is then dropped silently.
    """

    LIMIT = 256 << 10

    def __init__(self, loop: Loop, fd: int, broken: Callable[[], None] | None = None) -> None:
        self._loop = loop
        self._fd = fd
        self._broken = broken or self.close
        self._queue: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self._size = 0
        self._waiting: dict[Callable[[], None], None] = {}
        os.set_blocking(fd, False)
        loop.watch(fd, 0, self._flush)  # 0: only to notice that the reader is gone

    @property
    def room(self) -> bool:
        return self._size < self.LIMIT

    def when_room(self, call: Callable[[], None]) -> None:
        """Call once, when there is room again."""
        self._waiting[call] = None

    def put(self, data: bytes, taken: Callable[[], None] | None = None) -> None:
        """Queue bytes; `taken` is called when the descriptor has accepted all of them."""
        if self._fd >= 0:
            self._queue.append((memoryview(data), taken))
            self._size += len(data)
            self._loop.watch(self._fd, WRITE, self._flush)

    def close(self) -> None:
        """Signal the end to the reader. Idempotent; everything queued before must have been accepted."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._queue.clear()

    def _flush(self) -> None:
        if not self._queue:  # woken with nothing to send: the reader is gone
            self._broken()
            return
        try:
            while self._queue:
                rest, taken = self._queue[0]
                sent = os.write(self._fd, rest) if rest else 0
                self._size -= sent
                self._queue[0] = (rest[sent:], taken)
                if sent == len(rest):
                    self._queue.popleft()
                    if taken is not None:
                        taken()
        except BlockingIOError:
            pass
        except OSError:
            self._broken()
            return
        if not self._queue and self._fd >= 0:
            self._loop.watch(self._fd, 0, self._flush)
        calls, self._waiting = (self._waiting, {}) if self.room else ({}, self._waiting)
        for call in calls:
            call()
