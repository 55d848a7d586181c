"""What is awaited, on one line of a terminal that goes away again: said after a second, not before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from orchestrator.text import plain

_FIRST = 1.0  # seconds in which nobody wonders
_EVERY = 0.25
_CLEAR = "\r\x1b[K"


class Awaiting:
    """The line; `step` names what goes on. Call from any thread."""

    def __init__(self) -> None:
        self._text = ""
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def step(self, text: str) -> None:
        with self._lock:
            if text != self._text:
                self._text, self._since = text, time.monotonic()

    def line(self, now: float) -> str:
        """What is to be shown at a moment; "" for nothing."""
        with self._lock:
            seconds = now - self._since
            return f"{plain(self._text)} ({seconds:.0f} s)" if self._text and seconds >= _FIRST else ""


@contextmanager
def awaiting(stream: TextIO, width: int) -> Iterator[Awaiting]:
    """Show it while the block runs, where the stream is a terminal."""
    shown = Awaiting()
    if not stream.isatty():
        yield shown
        return
    over = threading.Event()

    def draw() -> None:
        visible = False
        while not over.wait(_EVERY):
            text = shown.line(time.monotonic())
            if text or visible:
                stream.write(_CLEAR + text[: width - 1])
                stream.flush()
            visible = bool(text)
        if visible:
            stream.write(_CLEAR)
            stream.flush()

    thread = threading.Thread(target=draw, name="awaiting", daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        over.set()
        thread.join()
