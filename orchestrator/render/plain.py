"""For pipes, files and CI: a line per fact, without color or redrawing.

Results go to stdout, progress to stderr. stdout contains only the tasks' own lines, so that `orchestrate
launch | grep loss` works; everything that orchestrate reports about the run is on stderr. Nothing is
dropped: a slow reader slows down the display, which does not affect the run. Nothing is folded, because
users who count or compare lines expect those of each task.
"""

import contextlib
from collections.abc import Callable
from typing import TextIO

from orchestrator.events import LogLine, RunPlanned, Stamped, TaskStarted
from orchestrator.render import fold
from orchestrator.render.errors import coloured
from orchestrator.render.folding import Shown
from orchestrator.render.sink import DisplayGoneError, Sink, colours
from orchestrator.render.words import say
from orchestrator.run.view import View, Vitals, apply
from orchestrator.text import moment, plain
from orchestrator.value import Value

_BURST = 1 << 15  # characters of lines that are written at once


class Look(Value):
    """How and how much of a run a viewer shows."""

    timestamps: bool = False
    shows: Callable[[str], bool] = lambda _task: True  # which tasks' lines
    brief: bool = False  # show one line about the run's start
    view: View = View()  # what happened earlier, and is not news


class Renderer:
    """Shows a run; each method raises DisplayGoneError when the output has no reader any more."""

    has_board = False  # measured numbers are shown
    takes_blocks = False  # one text may contain several lines

    def handle(self, stamped: Stamped) -> None:
        """Show an event, possibly only at the next `tick`."""
        raise NotImplementedError

    def tick(self) -> None:
        """Show what was held briefly; to be called often."""

    def close(self) -> None:
        """Restore the terminal. Idempotent."""

    def measured(self, vitals: Vitals) -> None:
        """Take the tasks' resource use, if it is displayed."""


def when(seconds: float) -> str:
    """Return `03:41:34.123 `, the time of a line, or blanks of the same width if unknown."""
    if not seconds:
        return " " * 13
    return f"{moment('%H:%M:%S', seconds)}.{int(seconds % 1 * 1000):03} "


class Prefixes:
    """The prefix of each task, as wide as the widest known one."""

    def __init__(self) -> None:
        self._task = self._host = 0
        self._made: dict[tuple[str, str], str] = {}

    def learn(self, view: View) -> None:
        """Make room for the tasks of the view."""
        self._task = max((len(task.task) for task in view.tasks.values()), default=0)
        self._host = max((len(task.host) for task in view.tasks.values()), default=0)
        self._made.clear()

    def fits(self, task: str, host: str) -> bool:
        return len(task) <= self._task and len(host) <= self._host

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
            # With those of the same moment: a call for each costs as much as everything else.
            self._held.append(f"{start}{shown}\n")
            self._length += len(self._held[-1])
            if self._length >= _BURST:
                self._write()
            return
        self._view = apply(self._view, event, stamped.at)
        late = isinstance(event, TaskStarted) and not self._prefixes.fits(event.task, event.host)
        if late or isinstance(event, RunPlanned):
            self._prefixes.learn(self._view)
        if texts := say(self._view, event, brief=self._look.brief):
            self._write()
            lines = (coloured(plain(line)) if self._colour else plain(line) for line in texts)
            self._err.write("".join(f"{line}\n" for line in lines))

    def tick(self) -> None:
        self._write()

    def close(self) -> None:
        with contextlib.suppress(DisplayGoneError):
            self._write()

    def _write(self) -> None:
        held, self._held, self._length = self._held, [], 0
        self._out.write("".join(held))
