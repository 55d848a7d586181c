"""The live display's lines as rich's text: a colour for each task, and the colours of the log. Pure.

Log text is data: it never meets rich's markup or emoji codes, and what passes is `text.harmless`.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.text import Text

from orchestrator.events import LogLine
from orchestrator.render.board import Row
from orchestrator.render.errors import coloured
from orchestrator.render.folding import Folded
from orchestrator.render.plain import when
from orchestrator.render.prefix import Prefixes
from orchestrator.render.wrap import wrapped
from orchestrator.run.view import View
from orchestrator.text import harmless, plain

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


_ASCII = {0x2500: "-", 0x2026: "~"}  # of the board, for terminals that know neither


class Paint:
    """Lines and rows with their styles; a console without colours shows the bare text."""

    def __init__(self, *, timestamps: bool = False, encoding: str = "utf-8") -> None:
        self._timestamps = timestamps
        self._rows = {} if _can_draw(encoding) else _ASCII
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
        if isinstance(said, Folded) and said.noise:
            return Text.assemble(at, (plain(prefix), "dim")), Text(plain(said.text), "dim")
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
                plain(text).translate(self._rows),
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


def _can_draw(encoding: str) -> bool:
    try:
        "\u2500".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _decoded(text: str) -> Text:
    """Text from elsewhere: of all that it may hold beside the printable only colours have an effect."""
    safe = harmless(text)
    return AnsiDecoder().decode_line(safe) if "\x1b" in safe else Text(safe)
