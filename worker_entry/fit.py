"""Training with Keras `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry import job as jobs
from worker_entry.data import pipeline
from worker_entry.job import Job, Trained
from worker_entry.steps import Steps


class Position:
    """Where `fit` begins; tf_keras asks it, by this name, of a model's `_training_state`."""

    def __init__(self, epoch: int, step: int) -> None:
        self._at = epoch, step

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._at


class StepCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Tells `Steps` of each step as it ends; the loss is read from the device only when it is asked for."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._steps = steps

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        # tf_keras adds up what the replicas say of a step (reduce_per_replica, but for a TPU); an
        # epoch's logs are right as they are.
        strategy = self.model.distribute_strategy
        summed = 1 if isinstance(strategy, tf.distribute.TPUStrategy) else strategy.num_replicas_in_sync
        self._steps.ended(lambda: _loss(logs) / summed)


def _loss(logs: Any) -> float:
    """Read the loss; with parameter servers logs are a promise, kept when some worker has done the step."""
    return float((logs.fetch() if hasattr(logs, "fetch") else logs)["loss"])


def _callbacks(job: Job, steps: Steps) -> list[Any]:
    """Every task runs every callback; tf_keras gives those other than the chief a temporary folder."""
    folder = job.options.tensorboard_dir
    board = [tf.keras.callbacks.TensorBoard(str(Path(folder).expanduser()))] if folder else []
    return [StepCallback(steps), *board]


def run(job: Job) -> Trained:
    with job.strategy.scope():
        model = jobs.build(job.source)
        model.compile(optimizer=jobs.optimizer(job.options), loss=jobs.losses(), metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
        steps = Steps(job, model, model.optimizer, settle=_settle(job))
    logs: dict[str, list[float]] = {}
    if steps.done < job.schedule.steps:
        model._training_state = Position(*job.schedule.position(steps.done))  # noqa: SLF001
        logs = model.fit(
            _batches(job, steps.done),
            epochs=job.schedule.epochs,
            steps_per_epoch=job.schedule.steps_per_epoch,
            callbacks=_callbacks(job, steps),
            verbose=2,
        ).history
        model._training_state = None  # noqa: SLF001
    last = {name: logs[name][-1] if logs else None for name in ("loss", "accuracy")}
    return steps.close(model, last["loss"], last["accuracy"], lambda: jobs.score_of(job, model))


def _settle(job: Job) -> Callable[[], None]:
    """Make a checkpoint wait for the workers: with parameter servers `fit` runs ahead of them."""
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
