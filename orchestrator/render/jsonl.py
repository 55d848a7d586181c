"""For programs: every event as a JSON line, and nothing else on stdout."""

from __future__ import annotations

from typing import TextIO

from orchestrator.eventjson import encode
from orchestrator.events import Stamped
from orchestrator.render.look import Look
from orchestrator.render.sink import Sink


class Jsonl:
    def __init__(self, stdout: TextIO, look: Look = Look()) -> None:  # noqa: B008 - frozen
        self._out = Sink(stdout)
        self._look = look

    def handle(self, stamped: Stamped) -> None:
        """Write an event; raise DisplayGoneError when nobody reads it."""
        if not self._look.leaves_out(stamped):
            self._out.write(encode(stamped).decode() + "\n")

    def tick(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is open."""
