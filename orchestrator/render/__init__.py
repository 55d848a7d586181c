"""Renderers: they consume events and own the terminal. The choice between them is made here."""

import os
from typing import TextIO

from orchestrator.events import Stamped, encode
from orchestrator.render.plain import Look, Plain, Renderer
from orchestrator.render.sink import DisplayGoneError, Sink, is_full

_DUMB = ("dumb", "unknown")  # terminals on which rich cannot redraw


class Jsonl(Renderer):
    """For programs: every event as a JSON line, and nothing else on stdout."""

    def __init__(self, stdout: TextIO) -> None:
        self._out = Sink(stdout)

    def handle(self, stamped: Stamped) -> None:
        self._out.write(encode(stamped).decode() + "\n")

    def tick(self) -> None:
        self._out.write("")


def choose(stdout: TextIO, json: bool, stderr: TextIO, look: Look) -> Renderer:
    """Return JSON lines on request, the live display on a terminal, plain lines elsewhere."""
    if json:
        return Jsonl(stdout)
    if stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in _DUMB:
        from orchestrator.render.live import Live  # noqa: PLC0415 - not everybody needs it

        return Live(stdout, look)
    return Plain(stdout, stderr, look)
