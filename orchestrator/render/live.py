"""For a terminal: the tasks' lines scroll by above, a region at the bottom shows where the run stands.

It is drawn a few times a second, in one write. A terminal that stands still (Ctrl-S, a dead link) holds up
the viewer and not the run: the reader of the logs leaves out what it will never catch up with. Log text is
data: it never meets rich's markup or emoji codes, and what passes is `text.harmless`.
"""

from __future__ import annotations

import io
from typing import TextIO, TypeAlias, cast

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from orchestrator import events as ev
from orchestrator.clock import SYSTEM, Clock
from orchestrator.diagnosis.ends import failed
from orchestrator.events import Event, LogLine, Stamped
from orchestrator.render.board import Row, region
from orchestrator.render.errors import coloured
from orchestrator.render.folding import Folded, Folding
from orchestrator.render.grid import wrapped
from orchestrator.render.plain import Look, Prefixes, Renderer, when
from orchestrator.render.sink import DisplayGoneError, Sink, colours
from orchestrator.render.words import say
from orchestrator.run.view import View, apply
from orchestrator.run.vitals import Vitals
from orchestrator.text import harmless, plain

_FRAME = 0.1  # seconds between two frames
_LEAST_ROOM = 20  # cells of a task's line
_MEASURE = Console(file=io.StringIO())  # wrapping asks one for nothing but its tab size
_ROOM = 4000  # lines that wait for the next frame

Said: TypeAlias = tuple[str, str] | LogLine | Folded  # a line of ours and its style, or one of tasks

# Red is for failures.
_OF_TASKS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


class Paint:
    """Lines with their styles; a console without colours shows the bare text."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._prefixes = Prefixes()
        self._styles: dict[str, str] = {}  # task -> its colour

    def learn(self, view: View) -> None:
        """Give each task of the view its colour, and a prefix as wide as the others'."""
        self._prefixes.learn(view)
        self._styles = {task: _OF_TASKS[place % len(_OF_TASKS)] for place, task in enumerate(view.tasks)}

    def line(self, said: Said) -> Text:
        """A line that scrolls by."""
        if isinstance(said, tuple):
            text, style = said
            return Text(plain(text), style) if style else _decoded(coloured(text))
        (line,) = self.lines_of(said)
        return line

    def lines_of(self, said: LogLine | Folded, width: int = 0) -> list[Text]:
        """A task's line in rows of `width` cells, broken between words: half a number is another number."""
        prefix = plain(self._prefixes.of_line(said))
        at = when(said.sent) if self._timestamps else ""
        style = self._styles.get(said.task if isinstance(said, LogLine) else "", "")  # several have no color
        text, room = _decoded(said.text), width - cell_len(at + prefix)
        rows = [text]
        if room >= _LEAST_ROOM and text.cell_len > room:
            text.expand_tabs(8)
            rows = list(text.wrap(_MEASURE, room, overflow="fold"))
            for row in rows:
                row.rstrip()
        blank = " " * (cell_len(at + prefix) - 2)
        heads = [Text.assemble((at, "dim"), (prefix, style)), *(Text(f"{blank}| ") for _ in rows[1:])]
        return [head.append_text(row) for head, row in zip(heads, rows, strict=True)]


def _decoded(text: str) -> Text:
    """Text from elsewhere: of all that it may hold beside the printable only colours have an effect."""
    safe = harmless(text)
    return AnsiDecoder().decode_line(safe) if "\x1b" in safe else Text(safe)


class Live(Renderer):
    has_board = True

    def __init__(self, stdout: TextIO, look: Look = Look(), clock: Clock = SYSTEM) -> None:  # noqa: B008 - frozen
        self._look, self._clock = look, clock
        self._paint = Paint(timestamps=look.timestamps)
        self._held = Folding(look.wanted)
        self._view = look.view
        self._said: list[Said] = []
        self._vitals = Vitals()
        self._drawn = 0.0  # when the last frame was
        self._rows: list[Row] = []  # as they stand on the screen
        self._sink = Sink(stdout)
        self._console = _Console(
            file=cast("TextIO", self._sink),
            force_terminal=True,
            force_interactive=True,
            legacy_windows=False,
            color_system="auto" if colours(stdout) else None,
            no_color=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self._live = RichLive(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()
        self._console.show_cursor(show=True)  # a killed process leaves nothing to repair

    def handle(self, stamped: Stamped) -> None:
        event = stamped.event
        if not isinstance(event, LogLine):
            self._view = apply(self._view, event, stamped.at)
            words = self._words(event)
            self._said += [*self._held.note(event, aloud=bool(words)), *words]
        else:
            self._said += self._held.add(event, stamped.at, self._clock.now())
        if len(self._said) > _ROOM:
            self._draw()

    def tick(self) -> None:
        now = self._clock.now()
        self._said += self._held.tick(now)
        if now - self._drawn >= _FRAME:
            self._draw()

    def measured(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def close(self) -> None:
        """Draw what is left, take the region away."""
        self._said += self._held.flush()
        with self._console:
            self._draw(board=False)
            self._live.stop()

    def _draw(self, *, board: bool = True) -> None:
        self._drawn = self._clock.now()
        # Rich would ask the standard streams, which may be none or another.
        width, height = self._console.size = self._sink.size()
        rows, lines = self.frame(width, height, board=board)
        if rows == self._rows and not lines:
            return
        self._rows = rows
        shown = Text("\n").join(Text(text[:width], style) for text, style in rows)
        with self._console:
            self._live.update(shown, refresh=True)
            if lines:
                self._console.print(Text("\n").join(lines), soft_wrap=True)

    def frame(self, width: int, height: int, *, board: bool = True) -> tuple[list[Row], list[Text]]:
        """Return the rows of the region, and the lines that scroll by since the last frame."""
        self._paint.learn(self._view)
        now = self._clock.wall()
        rows = region(self._view, now, max(2, height // 2), width - 1, self._vitals) if board else []
        lines: list[Text] = []
        for said in self._said:
            if isinstance(said, tuple) and not said[0].lstrip().startswith("try: "):  # that is to be copied
                lines += [self._paint.line((part, said[1])) for part in wrapped([said[0]], width)]
            elif isinstance(said, tuple):
                lines.append(self._paint.line(said))
            else:
                lines += self._paint.lines_of(said, width)
        self._said.clear()
        return rows, lines

    def _words(self, event: Event) -> list[Said]:
        """Word what is said above the region; what the region shows is not said again."""
        if isinstance(event, ev.PhaseStarted | ev.TaskStarted | ev.TaskReady):
            return []
        if isinstance(event, ev.TaskExited) and not failed(event):
            return []
        return [(line, _style(event)) for line in say(self._view, event, brief=self._look.brief)]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process; who watches over a run goes on unseen."""
        raise DisplayGoneError


def _style(event: Event) -> str:
    match event:
        case ev.RunEnded():
            return ""
        case ev.TaskExited():  # of which only failures are worded
            return "red"
        case ev.HostLost() | ev.LogGap() | ev.StopRequested() | ev.AttemptFailed() | ev.HostReplaced():
            return "yellow"
        case ev.HangSuspected():
            return "yellow"
        case _:
            return "dim"
