"""Renderers: they consume events and own the terminal. Which one is chosen once, here."""

from __future__ import annotations

import os
from typing import Protocol, TextIO

from orchestrator.events import Stamped
from orchestrator.render.jsonl import Jsonl
from orchestrator.render.plain import Plain
from orchestrator.render.sink import DisplayGoneError

__all__ = ["DisplayGoneError", "Renderer", "choose"]

_DUMB = ("dumb", "unknown")  # terminals on which rich draws nothing over


class Renderer(Protocol):
    def handle(self, stamped: Stamped) -> None:
        """Show an event; raise DisplayGoneError when nobody can see it."""

    def close(self) -> None:
        """Leave the terminal as it was found. Idempotent."""


def choose(stdout: TextIO, json: bool, stderr: TextIO) -> Renderer:
    """JSON lines when asked for, the live display on a terminal, plain lines elsewhere."""
    if json:
        return Jsonl(stdout)
    if stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in _DUMB:
        from orchestrator.render.live import Live  # noqa: PLC0415 - not everybody needs it

        return Live(stdout)
    return Plain(stdout, stderr)
