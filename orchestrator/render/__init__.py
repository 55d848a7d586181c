"""Renderers: they consume events and own the terminal. Which one is chosen once, here."""

from __future__ import annotations

import os
from typing import Protocol, TextIO

from orchestrator.events import Stamped, encode
from orchestrator.render.plain import Look, Plain
from orchestrator.render.sink import DisplayGoneError, Sink, is_full
from orchestrator.run.vitals import Vitals

_DUMB = ("dumb", "unknown")  # terminals on which rich draws nothing over


class Renderer(Protocol):
    def handle(self, stamped: Stamped) -> None:
        """Show an event, perhaps with the next `tick`; raise DisplayGoneError when nobody can see it."""

    def tick(self) -> None:
        """Show what was held for a moment; to be called often. Raise DisplayGoneError as `handle` does."""

    def close(self) -> None:
        """Leave the terminal as it was found. Idempotent."""

    def measured(self, vitals: Vitals) -> None:
        """Take what the tasks use and show it where there is a board."""

    @property
    def has_board(self) -> bool:
        """Tell whether measured numbers are shown."""

    @property
    def takes_blocks(self) -> bool:
        """Tell whether a line may be several, with line ends between them."""


class Jsonl:
    """For programs: every event as a JSON line, and nothing else on stdout."""

    has_board = False
    takes_blocks = False

    def __init__(self, stdout: TextIO) -> None:
        self._out = Sink(stdout)

    def handle(self, stamped: Stamped) -> None:
        self._out.write(encode(stamped).decode() + "\n")

    def tick(self) -> None:
        """Hold nothing."""

    def close(self) -> None:
        """Have nothing open."""

    def measured(self, vitals: Vitals) -> None:
        """Show none of it."""


def choose(stdout: TextIO, json: bool, stderr: TextIO, look: Look = Look()) -> Renderer:  # noqa: B008 - frozen
    """JSON lines when asked for, the live display on a terminal, plain lines elsewhere."""
    if json:
        return Jsonl(stdout)
    if stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in _DUMB:
        from orchestrator.render.live import Live  # noqa: PLC0415 - not everybody needs it

        return Live(stdout, look)
    return Plain(stdout, stderr, look)
