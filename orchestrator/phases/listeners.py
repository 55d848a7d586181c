"""Whom TERM does not end, found out as it is sent: a user who waits for the grace should know what for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from orchestrator import wire
from orchestrator.events import TermUnheard
from orchestrator.fleet import Session
from orchestrator.phases.context import Run
from orchestrator.phases.follow import Follower
from orchestrator.planning.plan import is_builtin


class Listeners:
    """Asks the nodes once; when all have answered: who continues, and what the last checkpoints are."""

    def __init__(self, run: Run, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._told: dict[str, tuple[wire.TaskVitals, float]] = {}  # by task, with what its clock is ahead

    def ask(self) -> None:
        if is_builtin(self._run.plan.command):
            return  # worker_entry listens
        request = wire.VitalsAsk(run=self._run.id, attempt=self._follower.attempt, closely=True)
        sessions = dict(self._run.fleet.sessions)
        self._waiting = set(sessions)
        for name, session in sessions.items():
            session.submit(request).add_done_callback(partial(self._answered, name, session))

    def _answered(self, name: str, session: Session, future: Future[wire.Measured]) -> None:
        """From the session's reader."""
        with self._lock:
            if not future.cancelled() and future.exception() is None:
                for told in future.result().tasks:
                    if self._follower.speaks_for(name, told.task):
                        self._told[told.task] = (told, session.clock_offset)
            self._waiting.discard(name)
            if self._waiting:
                return
        if (found := unheard(self._told)) is not None:
            self._run.bus.emit(found)


def unheard(told: Mapping[str, tuple[wire.TaskVitals, float]]) -> TermUnheard | None:
    """What is said of those that TERM does not end; None where it may end all of them.

    A program may catch it and end: only where TensorFlow is loaded is it known who mostly does not.
    """
    tasks = {task: one for task, (one, _) in sorted(told.items())}
    caught = tuple(task for task, one in tasks.items() if one.term is wire.Term.CAUGHT and one.tensorflow)
    ignored = tuple(task for task, one in tasks.items() if one.term is wire.Term.IGNORED)
    if not caught and not ignored:
        return None
    saved = tuple(
        (task, one.saved.path, one.saved.time_ns / 1e9 - clock)
        for task, (one, clock) in sorted(told.items())
        if one.saved is not None
    )
    return TermUnheard(caught, ignored, saved)
