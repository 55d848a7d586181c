"""What both loops are given, and what they give back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_entry.cluster import Cluster
from worker_entry.data.source import Source
from worker_entry.options import Options
from worker_entry.report import Reporter
from worker_entry.schedule import Schedule


@dataclass(frozen=True)
class Job:
    options: Options
    cluster: Cluster
    strategy: Any
    source: Source
    schedule: Schedule
    reporter: Reporter

    @property
    def folder(self) -> Path | None:
        """Of checkpoints; a validation must not touch the job's."""
        if self.options.checkpoint_dir is None or self.options.validate is not None:
            return None
        return Path(self.options.checkpoint_dir).expanduser()

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    @property
    def global_batch(self) -> int:
        return self.options.batch_size * self.replicas


@dataclass(frozen=True)
class Trained:
    model: Any
    loss: float | None  # None: a checkpoint of the last step was there, nothing was left to train
    accuracy: float | None
    test_loss: float
    test_accuracy: float
    steps: int
    steps_per_second: float
    seconds: float
