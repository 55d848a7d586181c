"""What a supervisor can read without guessing from log text: one JSON record a line.

The records are appended to the file named by ORCHESTRATE_REPORT; without it nothing is written.

    {"kind": "data", "name", "step", "done", "total"}     data are fetched: what is done, bytes of how many
    {"kind": "ready", "note"}                             the strategy stands, the first step comes next
    {"kind": "progress", "step", "loss", "steps_per_second",   at most one a second, and the last step
                         "waiting"}            the share of the time in which it waited for the others' part
    {"kind": "result", "digest", "loss", "accuracy", "test_loss", "test_accuracy", "dataset", "note",
                       "steps", "steps_per_second", "seconds", "startup"}
    {"kind": "error", "message", "why", "hint"}           what an expected error says on stderr
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

from worker_entry.stages import Stages, process_start

VARIABLE = "ORCHESTRATE_REPORT"


class Reporter:
    def __init__(
        self, path: str | None, *, every: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = Path(path) if path else None
        self._every = every
        self._clock = clock
        self._next_progress = -math.inf
        self.startup = Stages(process_start())

    @classmethod
    def from_environment(cls) -> Reporter:
        return cls(os.environ.get(VARIABLE))

    def data(self, name: str, step: str, done: int, total: int) -> None:
        """Missing data are being fetched; `done` of `total` bytes (0: not known) are here."""
        of = f" ({done / 1e6:.1f} of {total / 1e6:.1f} MB)" if total else ""
        print(f"{name}: {step}{of}", flush=True)
        self._write({"kind": "data", "name": name, "step": step, "done": done, "total": total})

    def ready(self, note: str) -> None:
        self._write({"kind": "ready", "note": note})

    def progress_due(self) -> bool:
        """Whether a second has passed: reading a loss from a device costs a wait, so ask before reading."""
        return self._path is not None and self._clock() >= self._next_progress

    def progress(self, step: int, loss: float, steps_per_second: float, waiting: float | None = None) -> None:
        self._next_progress = self._clock() + self._every
        rate = round(steps_per_second, 3)
        record = {"kind": "progress", "step": step, "loss": loss, "steps_per_second": rate}
        self._write(record if waiting is None else {**record, "waiting": round(waiting, 3)})

    def result(self, **fields: Any) -> None:
        self._write({"kind": "result", **fields})

    def error(self, message: str, **more: Any) -> None:
        self._write({"kind": "error", "message": message, **more})

    def _write(self, record: dict[str, Any]) -> None:
        """One write per record: a reader never sees half of one, and a full disk does not end training."""
        if self._path is None:
            return
        line = json.dumps({key: _finite(value) for key, value in record.items()}) + "\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            print(f"report not written: {error}", flush=True)


def _finite(value: Any) -> Any:
    """JSON has no NaN; a diverged loss is reported as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
