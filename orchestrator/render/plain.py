"""For pipes, files and CI: a line per fact, no colour unless it is forced, nothing drawn over.

Results go to stdout, progress to stderr: stdout has the tasks' own lines and nothing else, so that
`orchestrate launch | grep loss` sees only them; what orchestrate says about the run is on stderr.
Nothing is dropped: a slow reader slows down the display, which the run does not notice. Nothing is folded
unless it is asked for: who counts or compares lines counts each task's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import TextIO

from orchestrator.diagnosis.ends import failed
from orchestrator.events import LogLine, RunPlanned, Stamped, TaskExited, TaskStarted
from orchestrator.model import Fold
from orchestrator.render.errors import coloured
from orchestrator.render.folding import Folding, Shown
from orchestrator.render.look import Look, when
from orchestrator.render.prefix import Prefixes
from orchestrator.render.sink import DisplayGoneError, Sink, colours
from orchestrator.render.words import say
from orchestrator.run.view import apply
from orchestrator.text import harmless, plain

_BURST = 1 << 15  # characters of lines that are written at once
_CODES = (36, 32, 35, 33, 34, 96, 92, 95, 94)  # of tasks; red is for failures


class Plain:
    def __init__(self, stdout: TextIO, stderr: TextIO, look: Look = Look()) -> None:  # noqa: B008 - frozen
        self._out = Sink(stdout)
        self._err = Sink(stderr)
        self._look = look
        self._colour, self._colour_of_ours = colours(stdout), colours(stderr)
        fold = look.fold or Fold.NONE
        self._folding = Folding(fold, look.wanted)
        narrowed = look.since or look.grep or look.timestamps
        self._bare = not (narrowed or self._colour) and fold is Fold.NONE  # the short way of most lines
        self._view = look.view
        self._prefixes = Prefixes()
        self._prefixes.learn(self._view)
        self._codes: dict[str, int] = {}
        self._held: list[str] = []  # lines of a burst, and their length
        self._length = 0

    def handle(self, stamped: Stamped) -> None:
        """Show an event; raise DisplayGoneError when nobody reads it."""
        event = stamped.event
        if isinstance(event, LogLine):
            if self._bare:
                self._put(plain(f"{self._prefixes.of(event.task, event.host)}{event.text}") + "\n")
                return
            if not self._look.leaves_out(stamped):
                self._show(self._folding.add(event, stamped.at, time.monotonic()))
            return
        self._view = apply(self._view, event, stamped.at)
        if isinstance(event, RunPlanned | TaskStarted):
            self._prefixes.learn(self._view)
            self._codes = {task: _CODES[n % len(_CODES)] for n, task in enumerate(self._view.tasks)}
        said = say(self._view, event)
        aloud = bool(said) and not (isinstance(event, TaskExited) and not failed(event))
        self._show(self._folding.note(event, time.monotonic(), aloud=aloud))
        if said:
            self._write()
            lines = (coloured(plain(line)) if self._colour_of_ours else plain(line) for line in said)
            self._err.write("".join(f"{line}\n" for line in lines))

    def tick(self) -> None:
        self._show(self._folding.tick(time.monotonic()))
        self._write()

    def close(self) -> None:
        """Show what is held; nothing else is open."""
        with contextlib.suppress(DisplayGoneError):
            self._show(self._folding.flush(time.monotonic()))
            self._write()

    def _put(self, line: str) -> None:
        """Have it written with those of the same moment: a call for each costs as much as all the rest."""
        self._held.append(line)
        self._length += len(line)
        if self._length >= _BURST:
            self._write()

    def _write(self) -> None:
        if self._held:
            text = "".join(self._held)
            self._held.clear()
            self._length = 0
            self._out.write(text)

    def _show(self, lines: Iterable[Shown]) -> None:
        for line in lines:
            at = when(line.sent) if self._look.timestamps else ""
            prefix = self._prefixes.of_line(line)
            shown = self._paint(at, prefix, line) if self._colour else plain(f"{at}{prefix}{line.text}")
            self._put(shown + "\n")

    def _paint(self, at: str, prefix: str, line: Shown) -> str:
        """As the live display does, of what a pipe can carry."""
        if isinstance(line, LogLine):
            code = self._codes.get(line.task, 0)
            end = "\x1b[0m" if "\x1b" in line.text else ""
            return f"{at}\x1b[{code}m{plain(prefix)}\x1b[0m{harmless(line.text)}{end}"
        if line.noise:
            return f"{at}\x1b[2m{plain(prefix + line.text)}\x1b[0m"
        return f"{at}{plain(prefix)}{harmless(line.text)}\x1b[0m"
