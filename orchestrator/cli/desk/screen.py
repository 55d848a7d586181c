"""`launch --attach`: our terminal as that of one task, which has a pseudo-terminal on its host.

What it prints comes by the run's folder, as ever, and is shown as it is: a task can do with the screen what
it likes, as over ssh. What is typed goes by its keeper.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
import tty
from pathlib import Path
from typing import Any

from orchestrator.events import Event, TaskExited, TaskStarted
from orchestrator.fleet import start_thread
from orchestrator.model import Order
from orchestrator.store import RunFolder

_LEAVE = b"\x1d"  # Ctrl-], as telnet has it
_AT_ONCE = 1024  # bytes; of an order the keeper's FIFO takes all or nothing up to 4096
_LOOK = 0.02  # seconds between two looks at what the task has printed


class Screen:
    """Ours from its task's start to its end."""

    def __init__(self, folder: RunFolder, task: str) -> None:
        self.left = False  # by its user
        self._folder = folder
        self._task = task
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: list[Any] = []
        self._log = Path()
        self._shown = 0  # bytes of it

    def heed(self, event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task == self._task:
            self._log = self._folder.log(event.attempt, self._task)
            self._before = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            raw = termios.tcgetattr(0)
            raw[1] = self._before[1]  # lines of our own end as ever
            termios.tcsetattr(0, termios.TCSADRAIN, raw)
            self._thread = start_thread("screen", self._serve)
        elif isinstance(event, TaskExited) and event.task == self._task:
            self.give_back()

    def give_back(self) -> None:
        """Show the rest, and have the terminal as it was. Idempotent."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None
            self._show()
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _serve(self) -> None:
        size = os.terminal_size((0, 0))
        while not self._over.is_set():
            typed = b""
            if select.select([0], [], [], _LOOK)[0]:
                typed = os.read(0, _AT_ONCE)
                if _LEAVE in typed or not typed:
                    self.left = True
                    return
            if typed or size != os.get_terminal_size():
                size = os.get_terminal_size()
                order = {"typed": typed.hex(), "terminal": (size.lines, size.columns)}
                while not self._folder.ask_keeper(Order.TYPE, **order):
                    if self._over.wait(_LOOK):  # its FIFO is full, or another keeper is on its way
                        return
            self._show()

    def _show(self) -> None:
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._shown)
            while data := file.read(1 << 16):
                self._shown += os.write(1, data)
