"""Waiting for descriptors and signals in one place."""

from __future__ import annotations

import os
import select
import signal

from ..base.annotations import Callable


class Waiter:
    """Calls the reader of each descriptor that has something."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, reader: Callable[[], None]) -> None:
        self._readers[fd] = reader
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, seconds: float) -> None:
        """Wait until something came or the time is over."""
        for fd, _ in self._poll.poll(max(1, int(seconds * 1000))):
            reader = self._readers.get(fd)
            if reader is not None:
                reader()


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
