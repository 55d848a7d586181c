"""Keys that a user presses while a run is shown, one at a time, and a terminal that is always restored.

The terminal sends each key at once and echoes none; Ctrl-C, Ctrl-Z and Ctrl-S stay what they are. It is
given back on the way out of the block, before a stop by Ctrl-Z, and before a signal that ends us.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

_MOST = 64  # keys that are read at once


class Keyboard:
    """The keys of standard input while it is a terminal and ours; of anything else there are none.

    `hide` is told (True) before the user's shell has the terminal, and (False) when it is ours again.
    """

    def __init__(self, hide: Callable[[bool], None] = lambda _hidden: None) -> None:
        self._fd = _stdin()
        self._hide = hide
        self._found: list[Any] | None = None  # the terminal's settings before ours
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if self._fd >= 0 and os.isatty(self._fd):
            handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
                signal.SIGTSTP: self._on_stop,
                signal.SIGCONT: self._on_continue,
                signal.SIGHUP: self._on_end,
                signal.SIGQUIT: self._on_end,
            }
            for number, handler in handlers.items():
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, handler)
            self._take()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        self._give_back()

    @property
    def ours(self) -> bool:
        """Whether there are keys to be read now."""
        return self._found is not None

    def read(self) -> list[str]:
        """The keys that were pressed; those of several bytes, such as arrows, mean nothing here."""
        if self._fd < 0 or not _in_foreground(self._fd):
            return []
        if not self.ours:  # it was in the background
            self._take()
        if not self.ours or not select.select([self._fd], [], [], 0)[0]:
            return []
        try:
            text = os.read(self._fd, _MOST).decode("utf-8", "replace")
        except OSError:  # the terminal is gone
            text = ""
        if not text:
            self._fd, self._found = -1, None
            return []
        return [text] if len(text) == 1 or text.startswith("\x1b") else list(text)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Somebody else reads from the terminal within this block: a question for a password."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        if self._fd < 0 or not os.isatty(self._fd) or not _in_foreground(self._fd):
            return  # setting a terminal from the background would stop us
        try:
            found = termios.tcgetattr(self._fd)
            settings = list(found)
            settings[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, settings)
        except termios.error:
            return
        self._found = self._found or found

    def _give_back(self) -> None:
        if self._found is not None and _in_foreground(self._fd):
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._found)
        self._found = None

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the terminal as it was, then the stop that everybody expects."""
        self._on_end(number, frame)
        signal.signal(number, self._on_stop)  # here again after `fg` or `bg`

    def _on_continue(self, _number: int, _frame: FrameType | None) -> None:
        self._take()
        self._hide(False)

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        self._hide(True)
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _stdin() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # it was closed
        return -1


def _in_foreground(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
