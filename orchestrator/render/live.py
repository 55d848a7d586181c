"""For a terminal: the tasks' lines scroll by above, a region at the bottom shows where the run stands.

The main thread hands over, a thread of its own draws, a few times a second and in one write: a terminal
that stands still (Ctrl-S, a dead link) never holds up the signals of the main thread. Lines wait for a slow
terminal; the reader of the logs leaves out what it will never catch up with. Log text is data: it never meets
rich's markup or emoji codes, and what passes is `text.harmless`.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import TextIO, TypeAlias, cast

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.control import Control
from rich.live import Live as RichLive
from rich.segment import ControlType
from rich.text import Text

from orchestrator import events as ev
from orchestrator.diagnosis.ends import failed
from orchestrator.events import Event, LogLine, Stamped
from orchestrator.model import Fold
from orchestrator.render.board import Row
from orchestrator.render.errors import coloured
from orchestrator.render.folding import Folded, Folding
from orchestrator.render.plain import Look, Prefixes, when
from orchestrator.render.region import region
from orchestrator.render.sink import DisplayGoneError, Sink, colours
from orchestrator.render.words import say
from orchestrator.render.wrap import wrapped
from orchestrator.run.view import View, apply
from orchestrator.run.vitals import Vitals
from orchestrator.text import harmless, plain

FRAME = 0.1  # seconds between two frames
ROOM = 4000  # lines that may wait to be drawn
PATIENCE = 2.0  # seconds without a frame, at the end, after which the terminal counts as stuck


Said: TypeAlias = tuple[str, str] | LogLine | Folded  # a line of ours and its style, or one of tasks

# Red is for failures.
_OF_TASKS = (
    "cyan",
    "green",
    "magenta",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_magenta",
    "bright_blue",
)


class Paint:
    """Lines and rows with their styles; a console without colours shows the bare text."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._known: tuple[tuple[str, str], ...] = ()
        self._prefixes = Prefixes()
        self._styles: dict[str, str] = {}  # task -> its colour

    def learn(self, view: View) -> None:
        """Give each task of the view its colour, and a prefix as wide as the others'."""
        known = tuple((task.task, task.host) for task in view.tasks.values())
        if known == self._known:
            return
        self._known = known
        self._prefixes.learn(view)
        self._styles = {task: _OF_TASKS[place % len(_OF_TASKS)] for place, task in enumerate(view.tasks)}

    def line(self, said: Said) -> Text:
        """A line that scrolls by."""
        if isinstance(said, tuple):
            text, style = said
            return Text(plain(text), style) if style else _decoded(coloured(text))
        return Text.assemble(*self._head_and_text(said))

    def _head_and_text(self, said: LogLine | Folded) -> tuple[Text, Text]:
        prefix = self._prefixes.of_line(said)
        at = (when(said.sent), "dim") if self._timestamps else ""
        task = said.task if isinstance(said, LogLine) else ""  # several have no colour
        return Text.assemble(at, (plain(prefix), self._styles.get(task, ""))), _decoded(said.text)

    def lines(self, said: Said, width: int) -> list[Text]:
        """Break a line between words; what is to be copied is left whole, and so is a word."""
        if not isinstance(said, tuple):
            head, text = self._head_and_text(said)
            if head.cell_len + text.cell_len <= width:
                return [Text.assemble(head, text)]
            more = Text(" " * max(0, head.cell_len - 2) + "| ", "dim")
            parts = text.divide(_breaks(text.plain, max(20, width - head.cell_len)))
            return [Text.assemble(more if place else head, part) for place, part in enumerate(parts)]
        if said[0].lstrip().startswith("try: "):
            return [self.line(said)]
        return [self.line((part, said[1])) for part in wrapped([said[0]], width)]

    def row(self, row: Row, width: int) -> Text:
        """A row of the region, cut to `width` cells; the style `task` is the colour of the task it names."""
        cells = [
            (
                plain(text),
                self._styles.get(text.strip(), "") if style == "task" else style,
            )
            for text, style in row
        ]
        made = Text.assemble(*cells)
        made.truncate(max(0, width))
        made.rstrip()
        return made


def _breaks(text: str, width: int) -> list[int]:
    """Return where the further lines begin that a text needs; no word is broken."""
    begins, found = 0, []
    for word in re.finditer(r"\s*\S+", text):
        if cell_len(text[begins : word.end()]) > width and word.start() > begins:
            begins = word.end() - len(word.group().lstrip())
            found.append(begins)
    return found


def _decoded(text: str) -> Text:
    """Text from elsewhere: of all that it may hold beside the printable only colours have an effect."""
    safe = harmless(text)
    return AnsiDecoder().decode_line(safe) if "\x1b" in safe else Text(safe)


class Live:
    has_board = True
    takes_blocks = False

    def __init__(self, stdout: TextIO, look: Look = Look()) -> None:  # noqa: B008 - frozen
        self._look = look
        self._paint = Paint(timestamps=look.timestamps)
        self._held = Folding(look.fold or Fold.SIMILAR, look.wanted)
        self._terminal = _Terminal(stdout)
        self._view = look.view
        self._said: deque[Said] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._vitals = Vitals()
        self._frames = 0
        self._gone: Exception | None = None
        self._thread = threading.Thread(target=self._draw_on, name="display", daemon=True)
        self._thread.start()

    def handle(self, stamped: Stamped) -> None:
        """Take an event to be drawn; raise DisplayGoneError once the terminal is gone."""
        event = stamped.event
        with self._changed:
            if self._gone:
                raise self._gone
            if isinstance(event, LogLine):
                if not self._look.leaves_out(stamped):
                    self._changed.wait_for(lambda: len(self._said) < ROOM or self._gone)
                    self._said.extend(self._held.add(event, stamped.at, time.monotonic()))
                return
            self._view = apply(self._view, event, stamped.at)
            words = _words(self._view, event, brief=self._look.brief)
            self._said.extend(self._held.note(event, aloud=bool(words)))
            self._said.extend(words)

    def tick(self) -> None:
        """The thread that draws shows what was held."""

    def measured(self, vitals: Vitals) -> None:
        """From now on the board has these numbers."""
        with self._changed:
            self._vitals = vitals

    def close(self) -> None:
        """Draw what is left, take the region away; give up on a terminal that stands still."""
        with self._changed:
            self._said.extend(self._held.flush())
            self._closing = True
            self._changed.notify_all()
        frames = -1
        while self._thread.is_alive() and frames != self._frames:
            frames = self._frames
            self._thread.join(PATIENCE)

    def _draw_on(self) -> None:
        try:
            self._terminal.start()
            while self._draw():
                pass
        except Exception as error:  # also a bug of ours: the main thread has to hear of it
            with self._changed:
                self._gone = error
                self._said.clear()
                self._changed.notify_all()

    def _draw(self) -> bool:
        """One frame; False after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or len(self._said) >= ROOM, FRAME)
            self._said.extend(self._held.tick(time.monotonic()))
            view, closing, vitals = self._view, self._closing, self._vitals
            said = list(self._said)
            self._said.clear()
            self._changed.notify_all()
        self._paint.learn(view)
        width, height = self._terminal.measure()
        lines = [line for one in said for line in self._paint.lines(one, width)]
        if closing:
            self._terminal.stop(lines)
        else:
            rows = region(view, time.time(), max(2, height // 2), width - 1, vitals)
            self._terminal.draw(lines, [self._paint.row(row, width - 1) for row in rows])
        with self._changed:
            self._frames += 1
            self._changed.notify_all()
        return not closing


class _Terminal:
    """Lines that scroll by and rows that stay below them, drawn by rich, in one write per frame.

    Each method may take as long as the terminal stands still.
    """

    def __init__(self, stdout: TextIO) -> None:
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
        self._rows: list[Text] = []  # as they stand on the screen

    def start(self) -> None:
        with self._console:
            self._live.start()
            self._console.show_cursor(show=True)  # a killed process leaves nothing to repair

    def measure(self) -> ConsoleDimensions:
        """The size from now on. Rich would ask the standard streams, which may be none or another."""
        self._console.size = self._sink.size()
        return self._console.size

    def draw(self, lines: list[Text], rows: list[Text]) -> None:
        """Nothing is written when nothing has changed. Rows must be narrower than the screen."""
        with self._console:
            wrapped = self._unwrap()
            if wrapped or rows != self._rows:
                self._rows = rows
                self._live.update(Text("\n").join(rows), refresh=True)
            if lines:
                self._console.print(Text("\n").join(lines), soft_wrap=True)

    def stop(self, lines: list[Text]) -> None:
        """The last lines; the rows go."""
        with self._console:
            self.measure()
            self.draw(lines, [])
            self._live.stop()

    def _unwrap(self) -> int:
        """How many lines more the rows take since the screen became narrower; rich does not count them."""
        width = self._console.width
        more = sum(max(0, row.cell_len - 1) // width for row in self._rows)
        self._console.control(Control(*((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * more))
        return more


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process; who watches over a run goes on unseen."""
        raise DisplayGoneError


def _words(view: View, event: Event, *, brief: bool) -> list[Said]:
    """Word what is said above the region; what the region shows is not said again."""
    if isinstance(event, ev.PhaseStarted | ev.TaskStarted | ev.TaskReady):
        return []
    if isinstance(event, ev.TaskExited) and not failed(event):
        return []
    if isinstance(event, ev.RunEnded):
        return [(line, "") for line in say(view, event)]
    return [(line, _style(event)) for line in say(view, event, brief=brief)]


def _style(event: Event) -> str:
    match event:
        case ev.HostFailed():
            return "red"
        case ev.TaskExited():
            return "red" if failed(event) else "dim"
        case ev.HostLost() | ev.LogGap() | ev.StopRequested() | ev.AttemptFailed() | ev.HostReplaced():
            return "yellow"
        case ev.HangSuspected():
            return "yellow"
        case _:
            return "dim"
