"""Training with Keras `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from worker_entry import callbacks, models, scoring, waits
from worker_entry.data import pipeline
from worker_entry.job import Job, Trained
from worker_entry.steps import Steps


class Position:
    """Where `fit` begins; tf_keras asks it, by this name, of a model's `_training_state`."""

    def __init__(self, epoch: int, step: int) -> None:
        self._at = epoch, step

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._at


def run(job: Job) -> Trained:
    with job.strategy.scope():
        network = models.build(job.options, job.source)
        model = network.model
        model.compile(
            optimizer=models.optimizer(job.options),
            loss=network.loss(),
            metrics=["accuracy"],
        )
        model.optimizer.build(model.trainable_variables)
        steps = Steps(job, model, model.optimizer, settle=_settle(job))
        waits.watch(steps.waits, model.optimizer)
    logs: dict[str, list[float]] = {}
    if steps.done < job.schedule.steps:
        model._training_state = Position(*job.schedule.position(steps.done))  # noqa: SLF001
        logs = model.fit(
            _batches(job, steps.done),
            epochs=job.schedule.epochs,
            steps_per_epoch=job.schedule.steps_per_epoch,
            callbacks=callbacks.make(job, steps),
            verbose=2,
        ).history
        model._training_state = None  # noqa: SLF001
    steps.close()
    score = scoring.of(job, network)
    return Trained(
        network=network,
        loss=logs["loss"][-1] if logs else None,
        accuracy=logs["accuracy"][-1] if logs else None,
        score=score,
        steps=steps.done,
        steps_per_second=steps.pace.steps_per_second,
        seconds=steps.pace.seconds,
    )


def _settle(job: Job) -> Callable[[], None]:
    """With parameter servers `fit` runs ahead of the workers; a checkpoint has to wait for them."""
    if not job.asynchronous:
        return lambda: None
    join: Callable[[], None] = tf.distribute.coordinator.ClusterCoordinator(job.strategy).join
    return join


def _batches(job: Job, skip: int) -> Any:
    if job.asynchronous:
        return tf.keras.utils.experimental.DatasetCreator(
            lambda _context: pipeline.worker_batches(job.source, job.options.batch_size)
        )
    return pipeline.train_batches(
        job.source, job.global_batch, job.options.seed, skip=skip, tasks=len(job.cluster.trainers)
    )
