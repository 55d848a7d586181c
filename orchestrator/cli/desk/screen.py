"""`launch --attach`: our terminal serves one task, which has a pseudo-terminal on its host.

Its output comes through the run's folder, as always, and is shown unchanged: a task can control the screen
as it could over ssh. Keyboard input goes through its keeper.
"""

import contextlib
import os
import select
import signal
import termios
import threading
import tty
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.clock import SYSTEM
from orchestrator.events import Event, TaskExited, TaskStarted
from orchestrator.model import Order
from orchestrator.store import RunFolder

_LEAVE = b"\x1d"  # Ctrl-], as telnet has it
_AT_ONCE = 512  # bytes; the keeper's FIFO takes all or nothing of a request up to 4096
_MOST = 3000  # hexadecimal digits that wait for a keeper
_LOOK = 0.02  # seconds between two checks for output of the task


class Screen:
    """The terminal from the task's start to its end."""

    def __init__(self, folder: RunFolder, task: str) -> None:
        self.left = False  # by its user
        self._folder = folder
        self._task = task
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: list[Any] = []
        self._log: Path | None = None  # while the task runs
        self._shown = 0  # bytes of it

    def handle(self, event: Event) -> None:
        """Take over the terminal when the task starts, and give it back when it ends."""
        if isinstance(event, TaskStarted) and event.task == self._task:
            self._log = self._folder.log(event.attempt, self._task)
            self.take()
        elif isinstance(event, TaskExited) and event.task == self._task:
            self.give_back()
            self._log = None

    def take(self) -> None:
        """Take over the terminal if the task runs."""
        if self._log is None or self._before:
            return
        self._before = termios.tcgetattr(0)
        self._over.clear()
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # otherwise nohup's
            signal.signal(signal.SIGHUP, self._hang_up)
        tty.setraw(0, termios.TCSADRAIN)
        raw = termios.tcgetattr(0)
        raw[1] = self._before[1]  # our own lines end as usual
        termios.tcsetattr(0, termios.TCSADRAIN, raw)
        self._thread = SYSTEM.start("screen", self._serve)

    def give_back(self) -> None:
        """Show the remaining output and restore the terminal. Idempotent."""
        if not self._before:
            return
        self._over.set()
        try:
            if self._thread is not None:
                self._thread.join()
            self._show()
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            self._before = []
            if signal.getsignal(signal.SIGHUP) == self._hang_up:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def _hang_up(self, number: int, _: FrameType | None) -> None:
        """Restore the terminal, which may outlive us, and end by the signal."""
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, self._before)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _serve(self) -> None:
        size, order = os.terminal_size((0, 0)), dict[str, Any]()  # that no keeper has received yet
        try:
            while not self._over.is_set():
                if select.select([0], [], [], _LOOK)[0]:
                    typed = os.read(0, _AT_ONCE)
                    if _LEAVE in typed or not typed:
                        break
                    order["typed"] = (order.get("typed", "") + typed.hex())[:_MOST]
                if order or size != os.get_terminal_size():
                    size = os.get_terminal_size()
                    order = {"typed": "", **order, "terminal": (size.lines, size.columns)}
                    if self._folder.ask_keeper(Order.TYPE, **order):
                        order = {}
                self._show()
        finally:
            self.left = not self._over.is_set()

    def _show(self) -> None:
        """Show the task's new output unchanged."""
        assert self._log is not None
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._shown)
            while data := file.read(1 << 16):
                while data:
                    sent = os.write(1, data)
                    self._shown, data = self._shown + sent, data[sent:]
