"""Records for a supervisor, which need not guess from log text: one JSON object per line.

The records are appended to the file named by ORCHESTRATE_REPORT; without it nothing is written.

    {"kind": "data", "name", "step", "done", "total"}     data are fetched: activity, bytes of how many
    {"kind": "ready", "note"}                             the strategy exists, the first step comes next
    {"kind": "progress", "step", "loss", "steps_per_second"}   at most one a second, and the last step
    {"kind": "result", "digest", "loss", "accuracy", "test_loss", "test_accuracy", "dataset", "note",
                       "steps", "steps_per_second", "seconds"}
    {"kind": "error", "message", "why", "hint"}           an expected error, as printed on stderr
    {"kind": "error", "message", "type", "file", "line"}  an exception
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "ORCHESTRATE_REPORT"


class Pace:
    """Steps per second, without the first step, which traces the function."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._last = clock()
        self._steps = 0
        self._first: tuple[float, int] | None = None  # when the first step (or group of steps) ended

    def step(self, count: int = 1) -> None:
        self._last = self._clock()
        self._steps += count
        self._first = self._first or (self._last, count)

    @property
    def seconds(self) -> float:
        return self._last - self._started

    @property
    def steps_per_second(self) -> float:
        if self._first is None:
            return 0.0
        at, count = self._first
        if self._steps == count:
            return count / max(self.seconds, 1e-9)
        return (self._steps - count) / max(self._last - at, 1e-9)


class Reporter:
    def __init__(
        self, path: str | None, *, every: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = Path(path) if path else None
        self._every = every
        self._clock = clock
        self._next_progress = -math.inf

    @classmethod
    def from_environment(cls) -> Reporter:
        return cls(os.environ.get(VARIABLE))

    def data(self, name: str, step: str, done: int, total: int) -> None:
        """Report that missing data are being fetched; `done` of `total` bytes (0: unknown) have arrived."""
        of = f" ({done / 1e6:.1f} of {total / 1e6:.1f} MB)" if total else ""
        print(f"{name}: {step}{of}", flush=True)
        self._write({"kind": "data", "name": name, "step": step, "done": done, "total": total})

    def ready(self, note: str) -> None:
        self._write({"kind": "ready", "note": note})

    def progress_due(self) -> bool:
        """Return True if a second has passed: reading a loss from a device means waiting, so check first."""
        return self._path is not None and self._clock() >= self._next_progress

    def progress(self, step: int, loss: float, steps_per_second: float) -> None:
        self._next_progress = self._clock() + self._every
        rate = round(steps_per_second, 3)
        self._write({"kind": "progress", "step": step, "loss": loss, "steps_per_second": rate})

    def result(self, **fields: Any) -> None:
        self._write({"kind": "result", **fields})

    def error(self, message: str, **more: Any) -> None:
        self._write({"kind": "error", "message": message, **more})

    def _write(self, record: dict[str, Any]) -> None:
        """Append a record in one write, which readers see whole; a full disk does not end training."""
        if self._path is None:
            return
        # JSON has no NaN, so a diverged loss is reported as text.
        odd = {key: str(v) for key, v in record.items() if isinstance(v, float) and not math.isfinite(v)}
        line = json.dumps({**record, **odd}) + "\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            print(f"report not written: {error}", flush=True)
