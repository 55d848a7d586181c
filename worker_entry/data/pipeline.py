"""From sources to batches: cached, shuffled by seed, repeated, prefetched, sharded by data."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from worker_entry.data import Source

SHUFFLE = 10_000  # the tutorial's buffer


def train_batches(source: Source, global_batch: int, seed: int, *, skip: int = 0, tasks: int = 1) -> Any:
    """Return endless global batches of which each task's replicas take their own part.

    The order depends on the seed only, so skipping `skip` completed steps gives an interrupted run the
    batches it would have seen. If there are enough files for all tasks, each reads its own; otherwise each
    reads everything and takes its part of every batch, which equals what one process would see.
    """
    data = source.train().cache().shuffle(min(SHUFFLE, source.train_examples), seed=seed)
    batches = data.repeat().batch(global_batch, drop_remainder=True)
    return finish(batches.skip(skip) if skip else batches, by_file=source.files >= tasks > 1)


def worker_batches(source: Source, batch: int) -> Any:
    """Return endless batches in a separate order, for a task that computes for parameter servers.

    This is traced once and runs on every worker; the clock makes their orders differ.
    """
    data = source.train().cache()
    seed = tf.cast(tf.timestamp() * 1e6, tf.int64)
    shuffled = data.shuffle(min(SHUFFLE, source.train_examples), seed=seed)
    return shuffled.repeat().batch(batch, drop_remainder=True)


def finish(batches: Any, *, by_file: bool = False) -> Any:
    """Return batches with a sharding policy, prefetched."""
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    # Never AUTO: with fewer files than tasks it leaves some tasks without data.
    options.experimental_distribute.auto_shard_policy = policies.FILE if by_file else policies.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
