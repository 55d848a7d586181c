"""Checkpoints of everything that a continued training needs: weights, optimizer, step.

Every task saves into a folder of its own, `<dir>/<type>-<index>/step-<n>`, because saving is a collective
operation anyway. At the start the tasks compare the newest step that each of them can see in any folder; one
that has the newest restores it, and all others receive the values from it. So it does not matter whether the
machines share a disk, which of them was lost, or whether a task comes back on another machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.cluster import Cluster
from worker_entry.failure import ExpectedError

KEEP = 2  # a checkpoint is deleted only after a later one is complete


def newest(folder: Path) -> tuple[int, str]:
    """Return the highest step with a complete checkpoint of any task, and its path; (-1, "") for none."""
    checkpoints = [(-1, "")]
    for sub in sorted(folder.glob("*/")):
        latest = tf.train.latest_checkpoint(str(sub))
        number = re.search(r"/step-(\d+)$", latest or "")
        if latest and number:
            checkpoints.append((int(number[1]), latest))
    return max(checkpoints)


class Backup:
    """Saves and restores one training. Create it in the strategy's scope, with the optimizer built."""

    def __init__(self, folder: Path, cluster: Cluster, strategy: Any, model: Any, optimizer: Any) -> None:
        self._folder = folder
        self._strategy = strategy
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")
        self._variables = [*model.variables, *optimizer.variables, self._step]
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=self._step)
        # Created now by all tasks, because creating a variable is a collective operation.
        _ = self._checkpoint.save_counter
        own = folder / str(cluster.task).replace("/", "-")
        # In a parameter-server cluster the files would otherwise be written on the ps machines.
        remote = bool(cluster.jobs.get("ps"))
        self._options = tf.train.CheckpointOptions(experimental_io_device="/job:chief" if remote else None)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(own), max_to_keep=KEEP, checkpoint_name="step"
        )

    def save(self, step: int) -> None:
        """Save; all tasks do so at the same step."""
        self._step.assign(step)
        self._manager.save(checkpoint_number=step, options=self._options)

    def restore(self) -> int:
        """Restore, as all tasks do before the first step; return the number of completed steps."""
        own, path = newest(self._folder)
        replicas = self._strategy.num_replicas_in_sync
        together = isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy) and replicas > 1
        if not together:
            return self._load(own, path) if path else 0
        source, step = self._agree(own)
        if step < 0:
            return 0
        first = self._local(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)[0]
        if source == int(first):  # our own first replica, as the whole cluster counts them
            self._load(step, path)
        self._receive(source)
        return step

    def _load(self, step: int, path: str) -> int:
        try:
            self._checkpoint.restore(path, options=self._options).assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise ExpectedError(
                f"the checkpoint {path} is for a different model or optimizer, or cannot be read",
                why=str(error).strip().splitlines()[0][:200],
                hint="use another --checkpoint-dir, or the options with which it was made",
            ) from None
        return step

    def _agree(self, own: int) -> tuple[int, int]:
        """Return the replica with the newest step, and that step."""
        gathered = self._local(
            lambda: tf.distribute.get_replica_context().all_gather(tf.constant([own], tf.int64), axis=0)
        )[0]
        steps = [int(step) for step in gathered]
        return steps.index(max(steps)), max(steps)

    def _receive(self, source: int) -> None:
        """Receive the values of the replica that has them: a sum in which the others are zero."""

        def contribute() -> Any:
            context = tf.distribute.get_replica_context()
            giving = context.replica_id_in_sync_group == source
            values = [
                tf.where(giving, value, tf.zeros_like(value)) for value in map(tf.identity, self._variables)
            ]
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, value) for value in values]

        summed = self._strategy.run(tf.function(contribute, autograph=False))
        for variable, value in zip(self._variables, summed):
            variable.assign(self._strategy.experimental_local_results(value)[0])

    def _local(self, function: Any) -> Any:
        return self._strategy.experimental_local_results(
            self._strategy.run(tf.function(function, autograph=False))
        )
