"""Ctrl-C and SIGTERM while a run is being started and watched."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interrupts:
    """A context in which Ctrl-C and SIGTERM are counted and passed on; none is lost.

    Those that arrive before `pass_on` is called are passed on then.
    """

    def __init__(self) -> None:
        self.count = 0
        self._receive: Callable[[int], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Before a job's time limit, if requested: `#SBATCH --signal=B:USR1@120`.
        of_slurm = (signal.SIGUSR1,) if "SLURM_JOB_ID" in os.environ else ()
        for number in (signal.SIGINT, signal.SIGTERM, *of_slurm):
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self, receive: Callable[[int], None]) -> None:
        self._receive = receive
        if self.count:
            receive(self.count)

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._receive is not None:
            self._receive(self.count)
