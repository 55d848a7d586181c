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

    def add(self, line: LogLine, now: float) -> list[LogLine]:
        """Take a line; the lines that are known to be harmless now. It is one of them, or it is held."""
        gone = named(line.text)
        if begins(line.text):
            self._excused.discard(line.task)
        if gone <= self._done and (gone or line.task in self._excused):
            self._excused.add(line.task)
            return [*self._begun(line), line]
        self._held.setdefault(line.task, (now, []))[1].append(line)
        return []

    def _begun(self, line: LogLine) -> list[LogLine]:
        """The lines before one that goes on with them: it may be the first to name somebody."""
        _, held = self._held.get(line.task, (0.0, []))
        others = set[str]().union(*(named(one.text) for one in held))
        return self.of(line.task) if not begins(line.text) and others <= self._done else []

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
        """Release the lines that were held long enough."""
        late = [task for task, (since, _) in self._held.items() if now - since >= PATIENCE]
        return [line for task in late for line in self.of(task)]

    def all(self) -> list[LogLine]:
        """Release all lines."""
        return [line for task in list(self._held) for line in self.of(task)]
