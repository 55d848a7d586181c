"""For programs: every event as a JSON line, and nothing else on stdout."""

from __future__ import annotations

from typing import TextIO

from orchestrator.events import Stamped, encode
from orchestrator.render.sink import Sink


class Jsonl:
    def __init__(self, stdout: TextIO) -> None:
        self._out = Sink(stdout)

    def handle(self, stamped: Stamped) -> None:
        """Write an event; raise DisplayGoneError when nobody reads it."""
        self._out.write(encode(stamped).decode() + "\n")

    def close(self) -> None:
        """Nothing is open."""
