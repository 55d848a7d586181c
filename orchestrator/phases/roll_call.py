"""Says once, while hosts are connected, whom the others wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from orchestrator.events import Noted
from orchestrator.phases.context import Emit
from orchestrator.run import latecomers

_LOOK = 0.1  # seconds between two looks


class RollCall:
    """A context manager around the connecting; `answered` is called from any thread for each host."""

    def __init__(self, hosts: Sequence[str], emit: Emit, first: float) -> None:
        self._left = dict.fromkeys(hosts)
        self._emit = emit
        self._first = first
        self._began = time.monotonic()
        self._last_answer: float | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="roll-call", daemon=True)

    def answered(self, host: str) -> None:
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
            if left and latecomers.due(time.monotonic() - self._began, self._first, last_answer):
                self._emit(Noted(latecomers.words(left)))
                return
