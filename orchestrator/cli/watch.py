"""Watching a run: its folder is read, the renderer draws, the user's signals become requests."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from orchestrator.cli import keeping
from orchestrator.errors import ExitStatus
from orchestrator.events import RunEnded
from orchestrator.render import Lasting, Renderer
from orchestrator.store import RunFolder, RunReader

_IDLE = 0.03  # seconds between two looks at the folder
_LOOK_FOR_KEEPER = 0.5  # seconds between two looks at its lock


class Interrupts:
    """A context in which Ctrl-C and SIGTERM are counted and passed on, none lost.

    Those that come before `pass_on` is called are passed on then.
    """

    def __init__(self) -> None:
        self.count = 0
        self._told: Callable[[int], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self, told: Callable[[int], None]) -> None:
        self._told = told
        if self.count:
            told(self.count)

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._told is not None:
            self._told(self.count)


def own(folder: RunFolder, reader: RunReader, renderer: Renderer, interrupts: Interrupts) -> int:
    """Watch a run we are responsible for: Ctrl-C stops it, twice kills it; return its exit status.

    A keeper that was killed is replaced.
    """

    def gone() -> bool:
        stop = {0: None, 1: "stop"}.get(interrupts.count, "kill")
        keeping.keep_adopted(folder, folder.read_plan(), stop=stop)
        return True

    def ask(count: int) -> None:
        folder.ask_keeper({"want": "stop" if count == 1 else "kill"})

    interrupts.pass_on(ask)
    return _loop(folder, reader, Lasting(renderer), lambda: False, gone)


def look(folder: RunFolder, reader: RunReader, renderer: Renderer) -> int:
    """Watch a run without owning it: Ctrl-C only stops watching."""
    with Interrupts() as interrupts:
        status = _loop(folder, reader, renderer, lambda: interrupts.count > 0, lambda: False)
    if interrupts.count and not reader.ended:
        print(f"run {folder.run} goes on; orchestrate stop {folder.run} ends it", file=sys.stderr)
    return status


def _loop(
    folder: RunFolder,
    reader: RunReader,
    renderer: Renderer,
    leave: Callable[[], bool],
    gone: Callable[[], bool],
) -> int:
    """Draw until the run has ended; `gone` replaces a keeper that vanished, False when it cannot."""
    status = int(ExitStatus.BUG)

    def draw() -> bool:
        """Show what is new; False when there was nothing."""
        nonlocal status
        drawn = False
        for stamped in reader.poll():
            drawn = True
            renderer.handle(stamped)
            if isinstance(stamped.event, RunEnded):
                status = stamped.event.status
            if leave():
                break
        return drawn

    checked = time.monotonic()
    try:
        while True:
            drawn = draw()
            if reader.ended:
                return status
            if leave():
                return int(ExitStatus.INTERRUPTED)
            if drawn:
                continue
            if time.monotonic() - checked > _LOOK_FOR_KEEPER:
                checked = time.monotonic()
                # It may have written its last event between our look at the folder and at the lock.
                if not folder.has_keeper() and not draw() and not gone():
                    return int(ExitStatus.BUG)
            time.sleep(_IDLE)
    finally:
        renderer.close()
