"""The end of each step, in every loop: count it, report it, save, and obey TERM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from worker_entry.backup import Backup
from worker_entry.failure import DivergedError
from worker_entry.job import Job, Score, Trained
from worker_entry.report import Pace
from worker_entry.stopping import CoordinationService, Saved, Stop

AHEAD = 8  # steps that a parameter-server chief dispatches per worker before it waits for them


class Steps:
    """Counts the steps, starting from an existing checkpoint. Create it in the strategy's scope.

    `settle` waits for dispatched steps: before a save, and every so many steps, so that a stop need not wait
    for hundreds of them.
    """

    def __init__(
        self, job: Job, model: Any, optimizer: Any, *, settle: Callable[[], None] = lambda: None
    ) -> None:
        self._job = job
        self._settle = settle
        self._every = job.options.save_every or job.schedule.steps_per_epoch
        self._backup: Backup | None = None
        self._stop: Stop | None = None
        self._loss: Callable[[], float] | None = None
        self._reported = 0
        self.done = 0
        if job.folder is not None:
            self._backup = Backup(job.folder, job.cluster, job.strategy, model, optimizer)
            self.done = self._backup.restore()
            together = () if job.asynchronous else tuple(map(str, job.cluster.trainers))
            self._stop = Stop(str(job.cluster.task), together, CoordinationService())
            self._stop.obey_sigterm()
        if self.done:
            print(f"continues at step {self.done + 1}, from {job.folder}")
        self._saved = self.done
        left = job.schedule.steps - self.done
        job.reporter.ready(f"{job.replicas} replicas, {left} of {job.schedule.steps} steps to do")
        self.pace = Pace()

    def ended(self, loss: Callable[[], float], count: int = 1) -> None:
        """Count finished steps. Raise Saved if they were the last before a stop."""
        self.done += count
        self._loss = loss
        self.pace.step(count)
        if self._job.asynchronous and self.done % (AHEAD * len(self._job.cluster.jobs["worker"])) == 0:
            self._settle()
        if self._job.reporter.progress_due():
            self._report(loss)
        if self._backup is None or self._stop is None:
            return
        stop = self._stop.now(self.done)
        if stop or self.done // self._every > self._saved // self._every:
            self._save(self._backup)
        if stop and self.done < self._job.schedule.steps:
            self._stop.close()
            raise Saved(self.done)

    def close(
        self, model: Any, loss: float | None, accuracy: float | None, score: Callable[[], Score | None]
    ) -> Trained:
        """End the training: save, then compute its score."""
        if self._loss is not None and self._reported < self.done:
            self._report(self._loss)
        if self._backup is not None and self._saved < self.done:
            self._save(self._backup)
        if self._stop is not None:
            self._stop.close()
        pace = self.pace
        return Trained(model, loss, accuracy, score(), self.done, pace.steps_per_second, pace.seconds)

    def _report(self, loss: Callable[[], float]) -> None:
        self._reported = self.done
        value = loss()
        self._job.reporter.progress(self.done, value, self.pace.steps_per_second)
        if not math.isfinite(value):
            raise DivergedError("loss", value, self.done)

    def _save(self, backup: Backup) -> None:
        self._settle()
        self._saved = self.done
        backup.save(self.done)
