"""Sources to batches: cached, shuffled by seed, repeated, prefetched, sharded by data."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from worker_entry.data.source import Source

SHUFFLE = 10_000  # the tutorial's buffer


def train_batches(source: Source, global_batch: int, seed: int, skip: int = 0) -> Any:
    """Endless global batches, the same on every task; each task's replicas take their own slice of each.

    The order is a function of the seed alone, so `skip` steps already done gives an interrupted run the very
    batches it would have seen.
    """
    data = source.train().cache().shuffle(min(SHUFFLE, source.train_examples), seed=seed)
    batches = data.repeat().batch(global_batch, drop_remainder=True)
    return _finish(batches.skip(skip) if skip else batches)


def worker_batches(source: Source, batch: int) -> Any:
    """For a task that computes for parameter servers: endless batches in an order of its own.

    This is traced once and runs on every worker; the clock is what makes their orders differ.
    """
    data = source.train().cache()
    seed = tf.cast(tf.timestamp() * 1e6, tf.int64)
    return (
        data.shuffle(min(SHUFFLE, source.train_examples), seed=seed)
        .repeat()
        .batch(batch, drop_remainder=True)
    )


def test_batches(source: Source, global_batch: int) -> Any:
    return _finish(source.test().cache().batch(global_batch))


def _finish(batches: Any) -> Any:
    options = tf.data.Options()
    # By data and not by file: most sets are one file, and every task must get its part of each batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
