"""For pipes, files and CI: a line per fact, no colour, nothing drawn over.

Results go to stdout, progress to stderr: stdout has the tasks' own lines and nothing else, so that
`orchestrate launch | grep loss` sees only them; what orchestrate says about the run is on stderr.
Nothing is dropped: a slow reader slows down the display, which the run does not notice. Nothing is folded:
who counts or compares lines counts each task's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TextIO

from msgspec import Struct

from orchestrator.events import LogLine, RunPlanned, Stamped, TaskStarted
from orchestrator.render import fold
from orchestrator.render.errors import coloured
from orchestrator.render.folding import Shown
from orchestrator.render.sink import DisplayGoneError, Sink, colours
from orchestrator.render.words import say
from orchestrator.run.view import View, apply
from orchestrator.run.vitals import Vitals
from orchestrator.text import moment, plain

_BURST = 1 << 15  # characters of lines that are written at once


class Look(Struct, frozen=True):
    """How a viewer wants a run to be shown, and what of it."""

    timestamps: bool = False
    wanted: Callable[[str], bool] = lambda _task: True  # which tasks' lines
    brief: bool = False  # of the run's start one line is said
    view: View = View()  # what happened before, and is not news


class Renderer:
    """Shows a run; each method raises DisplayGoneError when nobody can see it any more."""

    has_board = False  # measured numbers are shown
    takes_blocks = False  # a line may be several, with line ends between them

    def handle(self, stamped: Stamped) -> None:
        """Show an event, perhaps with the next `tick`."""
        raise NotImplementedError

    def tick(self) -> None:
        """Show what was held for a moment; to be called often."""

    def close(self) -> None:
        """Leave the terminal as it was found. Idempotent."""

    def measured(self, vitals: Vitals) -> None:
        """Take what the tasks use, where there is a board."""


def when(seconds: float) -> str:
    """`03:41:34.123 `: the time of a line, as wide where it is not known."""
    if not seconds:
        return " " * 13
    return f"{moment('%H:%M:%S', seconds)}.{int(seconds % 1 * 1000):03} "


class Prefixes:
    """The prefix of each task, as wide as the widest one known."""

    def __init__(self) -> None:
        self._task = self._host = 0
        self._made: dict[tuple[str, str], str] = {}

    def learn(self, view: View) -> None:
        """Make room for the tasks of the view."""
        self._task = max((len(task.task) for task in view.tasks.values()), default=0)
        self._host = max((len(task.host) for task in view.tasks.values()), default=0)
        self._made.clear()

    def of_line(self, line: Shown) -> str:
        if isinstance(line, LogLine):
            return self.of(line.task, line.host)
        return f"{fold.names(line.tasks):<{self._task + 1 + self._host}} | "

    def of(self, task: str, host: str) -> str:
        made = self._made.get((task, host))
        if made is None:
            made = self._made[task, host] = plain(f"{task:<{self._task}} {host:<{self._host}} | ")
        return made


class Plain(Renderer):
    def __init__(self, stdout: TextIO, stderr: TextIO, look: Look = Look()) -> None:  # noqa: B008 - frozen
        self._out = Sink(stdout)
        self._err = Sink(stderr)
        self._look = look
        self._colour = colours(stderr)
        self.takes_blocks = not look.timestamps
        self._view = look.view
        self._prefixes = Prefixes()
        self._prefixes.learn(self._view)
        self._held: list[str] = []  # lines of a burst, and their length
        self._length = 0

    def handle(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, LogLine):
            at = when(event.sent) if self._look.timestamps else ""
            start, text = f"{at}{self._prefixes.of(event.task, event.host)}", event.text
            shown = text.replace("\n", f"\n{start}") if "\n" in text else plain(text)
            self._put(f"{start}{shown}\n")
            return
        self._view = apply(self._view, event, stamped.at)
        if isinstance(event, RunPlanned | TaskStarted):
            self._prefixes.learn(self._view)
        if said := say(self._view, event, brief=self._look.brief):
            self._write()
            lines = (coloured(plain(line)) if self._colour else plain(line) for line in said)
            self._err.write("".join(f"{line}\n" for line in lines))

    def tick(self) -> None:
        self._write()

    def close(self) -> None:
        with contextlib.suppress(DisplayGoneError):
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
