"""How fast this machine computes: short windows of the same step, so that one disturbance is no verdict.

A step is the gradient of a batch in memory: no data are read, nothing is learned, nobody is waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.data import pipeline
from worker_entry.job import Job
from worker_entry.models import Network

WINDOWS = 6
_WARM_UP = 0.15  # of the time: caches, threads, a clock that rises
_LONGEST = 3  # times the time that was asked for, where single steps are long
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Usage:
    """What this process has had so far; None: the kernel does not tell."""

    wall: float  # seconds
    cpu: float  # seconds of processors, over all threads
    waited: float | None  # seconds in which threads could run and did not
    quota: tuple[int, int] | None  # periods of the group's quota with something to do, and those it cut short


def measure(job: Job, network: Network, seconds: float) -> dict[str, Any]:
    """The windows, as lists of equal length; {} where a step takes too long for them."""
    step = _step(job, network)
    step()  # is traced
    began = time.monotonic()
    _steps(step, seconds * _WARM_UP)
    each = seconds * (1 - _WARM_UP) / WINDOWS
    windows: list[dict[str, float | None]] = []
    while len(windows) < WINDOWS and time.monotonic() - began < seconds * _LONGEST:
        before = usage()
        count = _steps(step, each)
        windows.append(window(before, usage(), count))
    if len(windows) < WINDOWS:
        return {}
    columns = {name: [one[name] for one in windows] for name in windows[0]}
    return {**columns, "gpus": len(tf.config.list_logical_devices("GPU"))}


def window(before: Usage, after: Usage, steps: int) -> dict[str, float | None]:
    """Steps a second, seconds of processors for each, and the shares of waiting for one and of the quota."""
    cpu = after.cpu - before.cpu
    waited = held = None
    if before.waited is not None and after.waited is not None:
        lacked = max(0.0, after.waited - before.waited)
        waited = round(lacked / max(cpu + lacked, 1e-9), 3)
    if before.quota is not None and after.quota is not None:
        periods, short = (now - then for now, then in zip(after.quota, before.quota, strict=True))
        held = round(min(1.0, max(0, short) / max(periods, 1)), 3)
    rate = steps / max(after.wall - before.wall, 1e-9)
    return {"rate": round(rate, 3), "cpu": round(cpu / steps, 6), "waited": waited, "held": held}


def usage() -> Usage:
    """What this process has had until now."""
    return Usage(time.monotonic(), time.process_time(), _waited(), _quota())


def _steps(step: Callable[[], None], seconds: float) -> int:
    """At least one, until the time is over; how many."""
    count, end = 0, time.monotonic() + seconds
    while not count or time.monotonic() < end:
        step()
        count += 1
    return count


def _step(job: Job, network: Network) -> Callable[[], None]:
    images, labels = next(iter(pipeline.train_batches(job.source, job.options.batch_size, job.options.seed)))
    loss = network.loss()

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def compute() -> Any:
        with tf.GradientTape() as tape:
            # Not as in training: a moving average would be moved.
            value = loss(labels, network.model(images, training=False))
        gradients = tape.gradient(value, network.model.trainable_variables)
        return tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32)) for one in gradients])

    return lambda: compute().numpy() and None


def _waited() -> float | None:
    """By the scheduler's own account of each thread."""
    total = ran = 0
    try:
        for thread in Path("/proc/self/task").iterdir():
            fields = (thread / "schedstat").read_text().split()
            ran += int(fields[0])
            total += int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9 if ran else None  # a kernel that does not count says 0


def _quota() -> tuple[int, int] | None:
    """Of the group that has one, and is the nearest."""
    for path in _group_files():
        try:
            fields = dict(line.split() for line in path.read_text().splitlines())
            if "nr_periods" in fields:
                return int(fields["nr_periods"]), int(fields["nr_throttled"])
        except (OSError, ValueError, KeyError):
            continue
    return None


def _group_files() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _GROUPS / "cpu" if controllers else _GROUPS
        yield Path(os.path.normpath(f"{root}/{path}")) / "cpu.stat"
        yield root / "cpu.stat"  # of a container, whose path is its host's
