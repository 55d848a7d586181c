"""`worker/1 gpu-02 | `: the aligned beginning of a task's lines. Pure."""

from __future__ import annotations

from orchestrator.events import LogLine
from orchestrator.render import fold
from orchestrator.render.folding import Shown
from orchestrator.run.view import View
from orchestrator.text import plain

_MOST = 1000  # orders in which tasks may say the same


class Prefixes:
    """The prefix of each task, as wide as the widest one known."""

    def __init__(self) -> None:
        self._task = self._host = 0
        self._made: dict[tuple[str, str], str] = {}
        self._several: dict[tuple[str, ...], str] = {}

    def learn(self, view: View) -> None:
        """Make room for the tasks of the view."""
        self._task = max((len(task.task) for task in view.tasks.values()), default=0)
        self._host = max((len(task.host) for task in view.tasks.values()), default=0)
        self._made.clear()
        self._several.clear()

    def of_line(self, line: Shown) -> str:
        if isinstance(line, LogLine):
            return self.of(line.task, line.host)
        return self.of_several(line.tasks) if len(line.tasks) > 1 else self.of(line.tasks[0], line.host)

    def of(self, task: str, host: str) -> str:
        made = self._made.get((task, host))
        if made is None:
            made = self._made[task, host] = plain(f"{task:<{self._task}} {host:<{self._host}} | ")
        return made

    def of_several(self, tasks: tuple[str, ...]) -> str:
        """`worker/[0-3] | `, for a line that they share."""
        made = self._several.get(tasks)
        if made is None:
            if len(self._several) > _MOST:
                self._several.clear()
            width = self._task + 1 + self._host
            made = self._several[tasks] = f"{fold.names(tasks):<{width}} | "
        return made
