"""For a terminal: the tasks' lines scroll above, and a region at the bottom shows the run's state.

It is drawn a few times a second, each time in one write. A terminal that is paused (Ctrl-S, a dead link)
blocks the viewer but not the run: the log reader skips what the display will never catch up with. Log text
is data: it bypasses rich's markup and emoji codes, and is reduced to `text.harmless`.
"""

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
from orchestrator.run.view import View, Vitals, apply
from orchestrator.text import harmless, plain

_FRAME = 0.1  # seconds between two frames
_LEAST_ROOM = 20  # cells of a task's line
_MEASURE = Console(file=io.StringIO())  # wrapping uses only its tab size
_ROOM = 4000  # lines that wait for the next frame

Said: TypeAlias = tuple[str, str] | LogLine | Folded  # a line of ours with its style, or one of tasks

# Red is reserved for failures.
_OF_TASKS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


class Paint:
    """Lines with their styles; a console without colors shows plain text."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._prefixes = Prefixes()
        self._styles: dict[str, str] = {}  # task -> its color

    def learn(self, view: View) -> None:
        """Give each task of the view its color, and a prefix of the common width."""
        self._prefixes.learn(view)
        self._styles = {task: _OF_TASKS[place % len(_OF_TASKS)] for place, task in enumerate(view.tasks)}

    def line(self, text: str, style: str) -> Text:
        """Return a line of ours."""
        return Text(plain(text), style) if style else _decoded(coloured(text))

    def lines_of(self, output: LogLine | Folded, width: int = 0) -> list[Text]:
        """Return a task's line in rows of `width` cells, broken between words: half a number misleads."""
        prefix = plain(self._prefixes.of_line(output))
        at = when(output.sent) if self._timestamps else ""
        # Several tasks together have no color.
        style = self._styles.get(output.task, "") if isinstance(output, LogLine) else ""
        text, room = _decoded(output.text), width - cell_len(at + prefix)
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
    """Return external text in which only colors have an effect."""
    safe = harmless(text)
    return AnsiDecoder().decode_line(safe) if "\x1b" in safe else Text(safe)


class Live(Renderer):
    has_board = True

    def __init__(self, stdout: TextIO, look: Look = Look(), clock: Clock = SYSTEM) -> None:  # noqa: B008 - frozen
        self._look, self._clock = look, clock
        self._paint = Paint(timestamps=look.timestamps)
        self._held = Folding(look.shows)
        self._view = look.view
        self._output: list[Said] = []
        self._vitals = Vitals()
        self._drawn = 0.0  # when the last frame was
        self._rows: list[Row] = []  # as they are on the screen
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
        self._console.show_cursor(show=True)  # a killed process leaves nothing to restore

    def handle(self, stamped: Stamped) -> None:
        event = stamped.event
        if not isinstance(event, LogLine):
            self._view = apply(self._view, event, stamped.at)
            lines = self._words(event)
            self._output += [*self._held.note(event, aloud=bool(lines)), *lines]
        else:
            self._output += self._held.add(event, stamped.at, self._clock.now())
        if len(self._output) > _ROOM:
            self._draw()

    def tick(self) -> None:
        now = self._clock.now()
        self._output += self._held.tick(now)
        if now - self._drawn >= _FRAME:
            self._draw()

    def measured(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def close(self) -> None:
        """Draw the rest, then remove the region."""
        self._output += self._held.flush()
        with self._console:
            self._draw(board=False)
            self._live.stop()

    def _draw(self, *, board: bool = True) -> None:
        self._drawn = self._clock.now()
        # Rich would query the standard streams, which may be closed or different.
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
        """Return the rows of the region, and the lines to scroll since the last frame."""
        self._paint.learn(self._view)
        now = self._clock.wall()
        rows = region(self._view, now, max(2, height // 2), width - 1, self._vitals) if board else []
        lines: list[Text] = []
        for output in self._output:
            if not isinstance(output, tuple):
                lines += self._paint.lines_of(output, width)
                continue
            text, style = output
            copied = text.lstrip().startswith("try: ")  # by users
            lines += [self._paint.line(row, style) for row in ([text] if copied else wrapped([text], width))]
        self._output.clear()
        return rows, lines

    def _words(self, event: Event) -> list[Said]:
        """Return what is shown above the region; what the region shows is not repeated."""
        if isinstance(event, ev.PhaseStarted | ev.TaskStarted | ev.TaskReady):
            return []
        if isinstance(event, ev.TaskExited) and not failed(event):
            return []
        return [(line, _style(event)) for line in say(self._view, event, brief=self._look.brief)]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process; a viewer that is responsible for a run continues without output."""
        raise DisplayGoneError


def _style(event: Event) -> str:
    match event:
        case ev.RunEnded():
            return ""
        case ev.TaskExited():  # only failures become text
            return "red"
        case ev.HostLost() | ev.LogGap() | ev.StopRequested() | ev.AttemptFailed() | ev.HostReplaced():
            return "yellow"
        case ev.HangSuspected():
            return "yellow"
        case _:
            return "dim"
