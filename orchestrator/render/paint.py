"""Colour for the live display: what is said becomes one string of text and colour sequences. Pure.

Log text is data: no markup or emoji codes exist here, and what passes is `text.harmless`. We write the
sequences ourselves: through a library for terminals a line costs 50 microseconds instead of 1.
"""

from __future__ import annotations

from typing import TypeAlias

from orchestrator.events import LogLine
from orchestrator.render.errors import coloured
from orchestrator.render.prefix import Prefixes
from orchestrator.render.region import Row
from orchestrator.text import cells, cut, harmless, plain
from orchestrator.view import View

Said: TypeAlias = tuple[str, str] | LogLine  # a line of ours and its style, or a task's line

_RESET = "\x1b[0m"
_SGR = {
    "bold": "1", "dim": "2",
    "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
    "bright green": "92", "bright blue": "94", "bright magenta": "95", "bright cyan": "96",
}  # fmt: skip
# Red is for failures.
_OF_TASKS = (
    "cyan",
    "green",
    "magenta",
    "yellow",
    "blue",
    "bright cyan",
    "bright green",
    "bright magenta",
    "bright blue",
)


class Paint:
    """Lines and rows as they are written; without colour the bare text."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._known: tuple[tuple[str, str], ...] = ()
        self._prefixes = Prefixes()
        self._styles: dict[str, str] = {}  # task -> its colour
        self._made: dict[tuple[str, str], str] = {}  # (task, host) -> prefix in its colour

    def learn(self, view: View) -> None:
        """Give each task of the view its colour, and a prefix as wide as the others'."""
        known = tuple((task.task, task.host) for task in view.tasks.values())
        if known == self._known:
            return
        self._known = known
        self._prefixes.learn(view)
        self._styles = {task: _OF_TASKS[place % len(_OF_TASKS)] for place, task in enumerate(view.tasks)}
        self._made.clear()

    def line(self, said: Said) -> str:
        """A line that scrolls by."""
        if isinstance(said, LogLine):
            return self._prefix(said.task, said.host) + self._text(said.text)
        text, style = said
        return coloured(text) if self._colour and not style else self._styled(text, style)

    def row(self, row: Row, width: int) -> str:
        """A row of the region, cut to `width` cells; the style `task` is the colour of the task it names."""
        parts = []
        for text, style in row:
            shown = cut(text, width)
            width = width - cells(shown) if shown == text else 0
            parts.append(
                self._styled(shown, self._styles.get(text.strip(), "") if style == "task" else style)
            )
        return "".join(parts).rstrip()

    def _prefix(self, task: str, host: str) -> str:
        made = self._made.get((task, host))
        if made is None:
            made = self._styled(self._prefixes.of(task, host), self._styles.get(task, ""))
            self._made[task, host] = made
        return made

    def _text(self, text: str) -> str:
        if text.isprintable():
            return text
        return harmless(text) + _RESET if self._colour else plain(text)

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_SGR[style]}m{text}{_RESET}" if self._colour and style and text else text
