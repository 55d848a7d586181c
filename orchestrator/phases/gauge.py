"""What the tasks of an attempt do right now, written down for viewers, while there are any."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from orchestrator import wire
from orchestrator.model import TaskId
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.run import vitals

_WRITE_EVERY = 1.0
_ASK_EVERY = 5.0
_WATCHED = 15.0  # seconds after a viewer's last word in which somebody looks


class Gauge:
    """`look` never waits, and does nothing while nobody looks: no node is asked then."""

    def __init__(
        self, run: Run, follower: Follower, said: Callable[[TaskId], str] = lambda _task: ""
    ) -> None:
        self._run = run
        self._follower = follower
        self._said = said
        self._wrote = self._asked = 0.0
        self._answers: dict[str, Future[wire.Measured]] = {}  # by host
        self._known: dict[str, _Use] = {}  # by task

    def look(self) -> None:
        now = time.monotonic()
        if now - self._run.watched > _WATCHED or now - self._wrote < _WRITE_EVERY:
            return
        self._wrote = now
        self._take(now)
        if now - self._asked >= _ASK_EVERY:
            self._asked = now
            self._ask()
        try:
            self._run.folder.write_vitals(vitals.encode(self._made(now)))
        except OSError as error:  # no room: a board without these numbers is still one
            log.debug("vitals: %s", error)

    def _made(self, now: float) -> vitals.Vitals:
        wall = time.time()
        tasks = {}
        for task in self._follower.waiting():
            use = self._known.get(str(task))
            last = use.last if use else None
            tasks[str(task)] = vitals.Vital(
                heard=wall - max(0.0, now - self._follower.lives[task].heard),
                fit=self._follower.fits[task].fit,
                said=self._said(task),
                cpu=use.busy if use else None,
                memory=last.memory if last else None,
                gpu_memory=last.gpu_memory or None if last else None,
                gpu_busy=last.gpu_busy if last and last.gpu_memory else None,
            )
        return vitals.Vitals(wall, self._follower.attempt, tasks)

    def _ask(self) -> None:
        wanted = {self._follower.host(task) for task in self._follower.waiting()}
        for name, session in list(self._run.fleet.sessions.items()):
            if name in wanted and name not in self._answers:
                request = wire.VitalsAsk(run=self._run.id, attempt=self._follower.attempt, gpus=True)
                self._answers[name] = session.submit(request)

    def _take(self, now: float) -> None:
        for name, future in list(self._answers.items()):
            if not future.done():
                continue
            del self._answers[name]
            if future.cancelled() or future.exception() is not None:
                continue
            for told in future.result().tasks:
                if self._follower.speaks_for(name, told.task):
                    self._known[told.task] = _Use(told, now, self._known.get(told.task))


class _Use:
    """What a task used by its last answer, and how busy it was since the one before."""

    def __init__(self, told: wire.TaskVitals, at: float, before: _Use | None) -> None:
        self.last = told
        self.at = at
        self.busy: float | None = None
        if before is not None and at > before.at and told.cpu >= before.last.cpu:
            self.busy = (told.cpu - before.last.cpu) / (at - before.at)
