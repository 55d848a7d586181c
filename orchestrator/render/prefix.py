"""`worker/1 gpu-02 | `: the aligned beginning of a task's lines. Pure."""

from __future__ import annotations

from orchestrator.view import View


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

    def of(self, task: str, host: str) -> str:
        made = self._made.get((task, host))
        if made is None:
            made = self._made[task, host] = f"{task:<{self._task}} {host:<{self._host}} | "
        return made
