"""Whom the connecting waits for: said once, as soon as a host is clearly behind what its like took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from orchestrator.events import Event, Noted
from orchestrator.ranges import fold

_LOOK = 0.1  # seconds between two looks
_ALONE = 3.0  # times as long where nobody has answered: far or busy, not away


def due(waited: float, first: float, last_answer: float | None) -> bool:
    """Whether to say who is awaited.

    `last_answer` is how long the slowest took of those that have answered: who takes less than twice as
    long is no news, on a slow network neither.
    """
    return waited >= (first * _ALONE if last_answer is None else max(first, 2 * last_answer))


def words(hosts: Sequence[str]) -> str:
    """Who is awaited."""
    return f"waiting for {fold(hosts)}, which {'has' if len(hosts) == 1 else 'have'} not answered so far"


class Awaited:
    """A context manager around the connecting; `over(host)` is called from any thread for each host."""

    def __init__(self, hosts: Sequence[str], emit: Callable[[Event], None], first: float) -> None:
        self._left = dict.fromkeys(hosts)
        self._emit = emit
        self._first = first
        self._began = time.monotonic()
        self._last_answer: float | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="awaited", daemon=True)

    def over(self, host: str) -> None:
        """It has answered, or it is known why it does not."""
        with self._lock:
            self._left.pop(host, None)
            self._last_answer = time.monotonic() - self._began

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(min(_LOOK, self._first)):
            with self._lock:
                left, last_answer = tuple(self._left), self._last_answer
            if left and due(time.monotonic() - self._began, self._first, last_answer):
                self._emit(Noted(words(left)))
                return
