"""What follows each step, in every loop: it is counted, reported, saved, and TERM is obeyed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker_entry.backup import Backup
from worker_entry.job import Job
from worker_entry.pace import Pace
from worker_entry.stopping import Saved, Stop


class Steps:
    """To be made in the strategy's scope; restores the model when there is a checkpoint."""

    def __init__(
        self, job: Job, model: Any, optimizer: Any, *, epochs_a_save: int = 1, synchronous: bool = True
    ) -> None:
        self._job = job
        self._every = job.options.save_every or epochs_a_save * job.schedule.steps_per_epoch
        self._backup: Backup | None = None
        self._stop: Stop | None = None
        self.done = 0
        if job.folder is not None:
            self._backup = Backup(job.folder, job.cluster, job.strategy, model, optimizer)
            self.done = self._backup.restore()
            self._stop = Stop(job.cluster, synchronous=synchronous)
            if self.done:
                print(f"goes on at step {self.done + 1}, from {job.folder}")
        left = job.schedule.steps - self.done
        job.reporter.ready(f"{job.replicas} replicas, {left} of {job.schedule.steps} steps to do")
        self.pace = Pace()

    def ended(self, loss: Callable[[], float]) -> None:
        """One more step is done. Raises Saved when it was the last before a stop."""
        self.done += 1
        self.pace.step()
        last = self.done == self._job.schedule.steps
        if last or self._job.reporter.progress_due():
            self._job.reporter.progress(self.done, loss(), self.pace.steps_per_second)
        if self._backup is None or self._stop is None:
            return
        stop = self._stop.now(self.done)
        if stop or last or self.done % self._every == 0:
            self._backup.save(self.done)
        if stop and not last:
            self._stop.close()
            raise Saved(self.done)

    def close(self) -> None:
        """All steps are done."""
        if self._stop is not None:
            self._stop.close()
