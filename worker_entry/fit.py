"""Training with Keras `fit`."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from worker_entry import job as jobs
from worker_entry.data import pipeline
from worker_entry.job import Job, Trained
from worker_entry.options import folder
from worker_entry.steps import Steps


class Position:
    """The point where `fit` begins; tf_keras expects this class as a model's `_training_state`."""

    def __init__(self, epoch: int, step: int) -> None:
        self._at = epoch, step

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._at


class StepCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports each finished step to `Steps`; the loss is read from the device only on request."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._steps = steps

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        # tf_keras adds up the replicas' values of a step (reduce_per_replica, except on a TPU); an
        # epoch's logs are correct.
        strategy = self.model.distribute_strategy
        summed = 1 if isinstance(strategy, tf.distribute.TPUStrategy) else strategy.num_replicas_in_sync
        self._steps.ended(lambda: _loss(logs) / summed)


def _loss(logs: Any) -> float:
    """Return the loss; with parameter servers logs are futures, resolved when a worker has done the step."""
    return float((logs.fetch() if hasattr(logs, "fetch") else logs)["loss"])


def run(job: Job) -> Trained:
    with job.strategy.scope():
        model = jobs.build(job.source)
        # Not by its name: its variables would be created in the first step, which is then traced twice.
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy("accuracy")
        model.compile(optimizer=jobs.optimizer(job.options), loss=jobs.losses(), metrics=[accuracy])
        model.optimizer.build(model.trainable_variables)
        # With parameter servers `fit` runs ahead of the workers, for whom checkpoints wait.
        ahead = job.asynchronous
        settle = tf.distribute.coordinator.ClusterCoordinator(job.strategy).join if ahead else lambda: None
        steps = Steps(job, model, model.optimizer, settle=settle)
    logs: dict[str, list[float]] = {}
    if steps.done < job.schedule.steps:
        board = folder(job.options.tensorboard_dir)  # tf_keras gives all but the chief a temporary one
        boards = [tf.keras.callbacks.TensorBoard(str(board))] if board else []
        model._training_state = Position(*job.schedule.position(steps.done))  # noqa: SLF001
        logs = model.fit(
            _batches(job, steps.done),
            epochs=job.schedule.epochs,
            steps_per_epoch=job.schedule.steps_per_epoch,
            callbacks=[StepCallback(steps), *boards],
            verbose=2,
        ).history
        model._training_state = None  # noqa: SLF001
    last = {name: logs[name][-1] if logs else None for name in ("loss", "accuracy")}
    score = partial(jobs.score_of, job, model)
    return steps.close(
        model, last["loss"], last["accuracy"], score if not job.options.validate else lambda: None
    )


def _batches(job: Job, skip: int) -> Any:
    if job.asynchronous:
        return tf.keras.utils.experimental.DatasetCreator(
            lambda _context: pipeline.worker_batches(job.source, job.options.batch_size)
        )
    return pipeline.train_batches(
        job.source, job.global_batch, job.options.seed, skip=skip, tasks=len(job.cluster.trainers)
    )
