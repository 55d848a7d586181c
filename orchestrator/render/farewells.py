"""Errors that TensorFlow prints because other tasks have gone: harmless when those had done their work. Pure.

Until that is known they are held, for `PATIENCE` at most.
"""

from __future__ import annotations

from orchestrator.events import LogLine
from orchestrator.render.noise import begins, named

PATIENCE = 5.0  # seconds


class Farewells:
    def __init__(self) -> None:
        self._done: set[str] = set()  # tasks that have ended well
        self._excused: set[str] = set()  # tasks whose last such error was about those
        self._held: dict[str, tuple[float, list[LogLine]]] = {}  # since when, by task

    def started(self, task: str) -> None:
        self._done.discard(task)

    def add(self, line: LogLine, now: float) -> bool:
        """Take a line; whether it is known to be harmless. If not, it is held."""
        gone = named(line.text)
        if begins(line.text):
            self._excused.discard(line.task)
        if gone <= self._done and (gone or line.task in self._excused):
            self._excused.add(line.task)
            return True
        self._held.setdefault(line.task, (now, []))[1].append(line)
        return False

    def ended_well(self, task: str) -> list[LogLine]:
        """The lines that are harmless now that a task has ended: its own, and those about it."""
        self._done.add(task)
        harmless: list[LogLine] = []
        for other, (_, lines) in list(self._held.items()):
            gone = set[str]().union(*(named(line.text) for line in lines))
            if other == task or (gone and gone <= self._done):
                self._excused.add(other)
                harmless += self.of(other)
        return harmless

    def of(self, task: str) -> list[LogLine]:
        """The lines of a task, which are held no more."""
        return self._held.pop(task, (0.0, []))[1]

    def overdue(self, now: float) -> list[LogLine]:
        """Those that were held long enough, which are held no more."""
        late = [task for task, (since, _) in self._held.items() if now - since >= PATIENCE]
        return [line for task in late for line in self.of(task)]

    def all(self) -> list[LogLine]:
        """All of them; nothing is held then."""
        return [line for task in list(self._held) for line in self.of(task)]
