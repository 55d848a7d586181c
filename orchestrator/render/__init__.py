"""Renderers: they consume events and own the terminal. Which one is chosen once, here."""

from __future__ import annotations

import os
from typing import Protocol, TextIO, runtime_checkable

from orchestrator.events import Stamped
from orchestrator.render.jsonl import Jsonl
from orchestrator.render.keys import KeyAction
from orchestrator.render.look import Look
from orchestrator.render.plain import Plain
from orchestrator.render.sink import DisplayGoneError, is_full
from orchestrator.run.vitals import Vitals

_DUMB = ("dumb", "unknown")  # terminals on which rich draws nothing over


class Renderer(Protocol):
    def handle(self, stamped: Stamped) -> None:
        """Show an event, perhaps with the next `tick`; raise DisplayGoneError when nobody can see it."""

    def tick(self) -> None:
        """Show what was held for a moment; to be called often. Raise DisplayGoneError as `handle` does."""

    def close(self) -> None:
        """Leave the terminal as it was found. Idempotent."""


@runtime_checkable
class Board(Protocol):
    """What a renderer can do that draws on a terminal."""

    def measured(self, vitals: Vitals) -> None:
        """From now on the board has these numbers."""

    def press(self, key: str) -> KeyAction | None:
        """Take a key that the user pressed, "" for the chance to; what it asks of whoever watches the run."""

    def hide(self, *, hidden: bool) -> None:
        """Take the board away, before the user's shell has the terminal again; or show it once more."""


def choose(stdout: TextIO, json: bool, stderr: TextIO, look: Look = Look()) -> Renderer:  # noqa: B008 - frozen
    """JSON lines when asked for, the live display on a terminal, plain lines elsewhere."""
    if json:
        return Jsonl(stdout, look)
    if stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in _DUMB:
        from orchestrator.render.live import Live  # noqa: PLC0415 - not everybody needs it

        return Live(stdout, look)
    return Plain(stdout, stderr, look)
