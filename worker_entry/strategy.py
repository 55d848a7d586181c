"""The strategy: which one, why, and made so that every kind has the same two faces (scope, replicas)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from worker_entry import startup
from worker_entry.cluster import Cluster
from worker_entry.failure import UsageError
from worker_entry.options import Options


@dataclass(frozen=True)
class Chosen:
    name: str
    why: str


def choose(asked: str, cluster: Cluster, accelerators: int) -> Chosen:
    """What `--strategy auto` means here, or what was asked for, checked against TF_CONFIG."""
    tasks = len(cluster.trainers)
    if asked != "auto":
        if cluster.distributed and asked != "multi-worker":
            raise UsageError(
                f"--strategy {asked} trains alone, but TF_CONFIG names {tasks} tasks",
                why="each task would train its own model",
                hint="--strategy auto, or unset TF_CONFIG",
            )
        return Chosen(asked, "as asked")
    if cluster.distributed:
        return Chosen("multi-worker", f"TF_CONFIG names {tasks} tasks")
    if accelerators > 1:
        return Chosen("mirrored", f"{accelerators} GPUs and no other task")
    return Chosen("one-device", "one device and no other task")


def make(chosen: Chosen, options: Options, cluster: Cluster) -> Any:
    """Create it. For several tasks this is the moment they meet, so it is bounded in time."""
    match chosen.name:
        case "one-device":
            return tf.distribute.OneDeviceStrategy(_one_device(options.devices))
        case "mirrored":
            return tf.distribute.MirroredStrategy(devices=list(options.devices) or None)
        case _:
            return startup.multi_worker(cluster, options)


def _one_device(devices: Sequence[str]) -> str:
    if devices:
        return devices[0]
    return "gpu:0" if tf.config.list_physical_devices("GPU") else "cpu:0"
