"""One thread that waits for many descriptors and clocks; and the bounded way out of it."""

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
        self._timed = 0  # of two for the same moment the earlier comes first

    def watch(self, fd: int, what: int, call: Callable[[], None]) -> None:
        """Call when `fd` is ready for READ or WRITE, or broken; again and again until `unwatch`."""
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
        """Wait for the next thing to happen, `most` seconds at most, and serve all that has happened."""
        if self._timers:
            most = min(most, self._timers[0][0] - time.monotonic())
        # Rounded up, so that waking early is no busy loop.
        ready = [(fd, self._calls.get(fd)) for fd, _ in self._poll.poll(max(0, int(most * 1000) + 1))]
        for fd, call in ready:
            # An earlier callback may have let go of it, and another descriptor may have its number by now.
            if call is not None and self._calls.get(fd) == call:
                call()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()


def wake_on(*signals: int) -> int:
    """Unblock these signals; each puts its number into the pipe that is returned."""
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

    Whoever has much to say asks for `room` first; `on_room` is called when there is room again. `broken` is
    called when the reader is gone; by default what is still to be said is then given up silently.
    """

    LIMIT = 256 << 10

    def __init__(self, loop: Loop, fd: int, broken: Callable[[], None] | None = None) -> None:
        self._loop = loop
        self._fd = fd
        self._broken = broken or self.close
        self._queue: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self._size = 0
        self.on_room: Callable[[], None] = lambda: None
        os.set_blocking(fd, False)
        loop.watch(fd, 0, self._flush)  # 0: only to learn that the reader is gone

    @property
    def room(self) -> bool:
        return self._size < self.LIMIT

    def put(self, data: bytes, taken: Callable[[], None] | None = None) -> None:
        """`taken` is called when the descriptor has all of it."""
        if self._fd >= 0:
            self._queue.append((memoryview(data), taken))
            self._size += len(data)
            self._loop.watch(self._fd, WRITE, self._flush)

    def close(self) -> None:
        """The end of what the reader gets. Idempotent; what was put before must have been taken."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._queue.clear()

    def _flush(self) -> None:
        if not self._queue:  # woken with nothing to say: the reader is gone
            self._broken()
            return
        had_room = self.room
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
        if self.room and not had_room:
            self.on_room()
