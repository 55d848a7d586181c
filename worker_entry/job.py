"""What both loops are given, and what they give back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_entry.cluster import Cluster
from worker_entry.data.source import Source
from worker_entry.models import Network
from worker_entry.options import Options, folder
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
        """Of checkpoints."""
        return folder(self.options.checkpoint_dir)

    @property
    def asynchronous(self) -> bool:
        """Whether workers compute for parameter servers at their own pace, led by us, the chief."""
        return bool(self.cluster.jobs.get("ps"))

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    @property
    def global_batch(self) -> int:
        return self.options.batch_size * self.replicas


@dataclass(frozen=True)
class Score:
    """On all the test data."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Trained:
    network: Network
    loss: float | None  # None: a checkpoint of the last step was there, nothing was left to train
    accuracy: float | None
    score: Score
    steps: int
    steps_per_second: float
    seconds: float
