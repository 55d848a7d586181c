"""What the live display says, as rich's text: a colour for each task, and the colours of the log. Pure.

Log text is data: it never meets rich's markup or emoji codes, and what passes is `text.harmless`.
"""

from __future__ import annotations

from typing import TypeAlias

from rich.ansi import AnsiDecoder
from rich.text import Text

from orchestrator.events import LogLine
from orchestrator.render.errors import coloured
from orchestrator.render.prefix import Prefixes
from orchestrator.render.region import Row
from orchestrator.text import harmless
from orchestrator.view import View

Said: TypeAlias = tuple[str, str] | LogLine  # a line of ours and its style, or a task's line

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

    def __init__(self) -> None:
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
        if isinstance(said, LogLine):
            prefix = self._prefixes.of(said.task, said.host)
            return Text.assemble((prefix, self._styles.get(said.task, "")), _decoded(said.text))
        text, style = said
        return Text(text, style) if style else _decoded(coloured(text))

    def row(self, row: Row, width: int) -> Text:
        """A row of the region, cut to `width` cells; the style `task` is the colour of the task it names."""
        cells = [
            (text, self._styles.get(text.strip(), "") if style == "task" else style) for text, style in row
        ]
        made = Text.assemble(*cells)
        made.truncate(max(0, width))
        made.rstrip()
        return made


def _decoded(text: str) -> Text:
    """Text from elsewhere: of all that it may hold beside the printable only colours have an effect."""
    return Text(text) if text.isprintable() else AnsiDecoder().decode_line(harmless(text))
