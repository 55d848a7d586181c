"""Watching a run: its folder is read, the renderer draws, the user's signals become requests."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from orchestrator.cli import keeping
from orchestrator.errors import ExitStatus, RunError
from orchestrator.events import RunAdopted, RunEnded, RunLeft, RunPlanned, Stamped, StopRequested
from orchestrator.render import DisplayGoneError, Renderer
from orchestrator.store import RunFolder, RunReader

_IDLE = 0.03  # seconds between two looks at the folder
_LOOK_FOR_KEEPER = 0.5  # seconds between two looks at its lock
_PATIENCE = 2  # requests to stop that a keeper may leave without an effect before the viewer leaves it alone
_MOST_KEEPERS = 3  # that come to nothing


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


def own(
    folder: RunFolder,
    reader: RunReader,
    renderer: Renderer,
    interrupts: Interrupts,
    stop: str | None = None,
) -> int:
    """Watch a run we are responsible for: Ctrl-C stops it, twice kills it; return its exit status.

    A keeper that was killed is replaced. `stop` ("stop" or "kill") is what the run was asked for already.
    """

    def wanted() -> str | None:
        return stop if not interrupts.count else "kill" if interrupts.count > 1 or stop == "kill" else "stop"

    def ask(count: int) -> None:
        folder.ask_keeper({"want": "stop" if count == 1 else "kill"})

    interrupts.pass_on(ask)
    return _Watch(
        folder,
        reader,
        renderer,
        leave=lambda: interrupts.count > _PATIENCE,
        stopping=lambda: wanted() is not None,
        adopt=lambda: keeping.keep_adopted(folder, folder.read_plan(), stop=wanted()),
    ).loop()


def look(folder: RunFolder, reader: RunReader, renderer: Renderer) -> int:
    """Watch a run without owning it: Ctrl-C only stops watching."""
    with Interrupts() as interrupts:
        return _Watch(
            folder,
            reader,
            renderer,
            leave=lambda: interrupts.count > 0,
            stopping=lambda: False,
            adopt=lambda: keeping.keep_adopted(folder, folder.read_plan()),
        ).loop()


@dataclass
class _Watch:
    """Draws until the run has ended; replaces a keeper that vanished."""

    folder: RunFolder
    reader: RunReader
    renderer: Renderer
    leave: Callable[[], bool]  # whether the user wants to go
    stopping: Callable[[], bool]  # whether the end of the run was asked for
    adopt: Callable[[], bool]
    _status: int = int(ExitStatus.BUG)
    _shown: bool = True  # somebody sees what is drawn
    _left: Stamped | None = None
    _stopped: bool = False  # by a user, whoever that is
    _keepers: int = 0  # that were started one after the other, and came to nothing

    def loop(self) -> int:
        """The run's exit status, or the one that says why it was not watched to its end."""
        checked = time.monotonic()
        try:
            while True:
                drawn = self._draw()
                if self.reader.ended:
                    return self._status
                if self.leave():
                    self._say_that_it_goes_on()
                    return int(ExitStatus.INTERRUPTED)
                if not self._shown and not self.stopping():
                    self._say_that_it_goes_on()
                    return int(ExitStatus.OK)
                if drawn:
                    continue
                if time.monotonic() - checked > _LOOK_FOR_KEEPER:
                    checked = time.monotonic()
                    # It may have written its last event between our look at the folder and at the lock.
                    if not self.folder.has_keeper() and not self._draw():
                        if self.reader.left and self._left is not None:
                            self._show(self._left)
                            return int(ExitStatus.CLUSTER)
                        self._replace_keeper()
                time.sleep(_IDLE)
        finally:
            if self._shown:
                self.renderer.close()

    def _draw(self) -> bool:
        """Show what is new; False when there was nothing."""
        drawn = False
        for stamped in self.reader.poll():
            drawn = True
            if isinstance(stamped.event, StopRequested):
                self._stopped |= stamped.event.by == "user"
            if isinstance(stamped.event, RunEnded):
                self._status = stamped.event.status
            if isinstance(stamped.event, RunLeft):
                self._left = stamped  # of an earlier viewer's keeper, perhaps: only the last one is news
                continue
            if not isinstance(stamped.event, RunAdopted | RunPlanned):
                self._keepers = 0
            self._show(stamped)
            if self.leave():
                break
        return drawn

    def _show(self, stamped: Stamped) -> None:
        if self._shown:
            try:
                self.renderer.handle(stamped)
            except DisplayGoneError:  # `| head` has seen enough
                self._shown = False

    def _replace_keeper(self) -> None:
        """Raise RunError when keepers come to nothing."""
        if self._keepers >= _MOST_KEEPERS:
            raise RunError(
                f"run {self.folder.run} cannot be kept",
                why=f"{self._keepers} keepers ended before they had done anything",
                hint=f"see {self.folder.debug_log}",
            )
        self._keepers += self.adopt()

    def _say_that_it_goes_on(self) -> None:
        run = self.folder.run
        goes_on = f"run {run} goes on; orchestrate stop {run} ends it"
        stopped = f"run {run} is being stopped; orchestrate tail {run} shows its end"
        with contextlib.suppress(OSError):
            print(stopped if self._stopped else goes_on, file=sys.stderr)
