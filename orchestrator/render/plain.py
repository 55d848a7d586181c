"""For pipes, files and CI: a line per fact, no colour, nothing drawn over.

Results go to stdout, progress to stderr: stdout has the tasks' own lines and nothing else, so that
`orchestrate launch | grep loss` sees only them; what orchestrate says about the run is on stderr.
Nothing is dropped: a slow reader slows down the display, which the run does not notice.
"""

from __future__ import annotations

from typing import TextIO

from orchestrator.events import LogLine, RunPlanned, Stamped, TaskStarted
from orchestrator.render.prefix import Prefixes
from orchestrator.render.sink import Sink
from orchestrator.render.words import say
from orchestrator.text import plain
from orchestrator.view import View, apply


class Plain:
    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._out = Sink(stdout)
        self._err = Sink(stderr)
        self._view = View()
        self._prefixes = Prefixes()

    def handle(self, stamped: Stamped) -> None:
        """Show an event; raise DisplayGoneError when nobody reads it."""
        event = stamped.event
        if isinstance(event, LogLine):
            self._out.write(f"{self._prefixes.of(event.task, event.host)}{plain(event.text)}\n")
            return
        self._view = apply(self._view, event, stamped.at)
        if isinstance(event, RunPlanned | TaskStarted):
            self._prefixes.learn(self._view)
        said = say(self._view, event)
        if said:
            self._err.write("".join(f"{line}\n" for line in said))

    def close(self) -> None:
        """Nothing is open."""
