"""Training with a custom loop: what `fit` does, written out.

A synchronous cluster steps together; with parameter servers the chief dispatches steps, and workers execute
them when they can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from worker_entry import job as jobs
from worker_entry.data import pipeline
from worker_entry.job import Job, Trained
from worker_entry.steps import AHEAD, Steps


class Loop:
    """The variables of one training and its compiled steps."""

    def __init__(self, job: Job, settle: Callable[[], None] = lambda: None) -> None:
        self.job = job
        with job.strategy.scope():
            self.model = jobs.build(job.source)
            self.optimizer = jobs.optimizer(job.options)
            self.optimizer.build(self.model.trainable_variables)
            self._losses = jobs.losses(reduction="none")
            self.train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
            self.model.compile(loss=jobs.losses(), metrics=["accuracy"])  # for its evaluation
            self.steps = Steps(job, self.model, self.optimizer, settle=settle)
        self.train_step = tf.function(self._train_step, autograph=False)

    def _train_step(self, images: Any, labels: Any) -> Any:
        parts = self.job.strategy.run(self._train_on_replica, args=(images, labels))
        return self.job.strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    def _train_on_replica(self, images: Any, labels: Any) -> Any:
        """Return this replica's part of the loss; the parts add up to the mean over the global batch.

        A mean over the replica's own examples would make the sum, and thereby every step, too large by the
        number of replicas.
        """
        with tf.GradientTape() as tape:
            outputs = self.model(images, training=True)
            loss = tf.nn.compute_average_loss(
                self._losses(labels, outputs), global_batch_size=self.job.global_batch
            )
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.train_accuracy.update_state(labels, outputs)
        return loss

    def epochs(self) -> Iterator[tuple[int, int]]:
        """Yield each remaining epoch with its remaining steps."""
        schedule = self.job.schedule
        while self.steps.done < schedule.steps:
            epoch, first = schedule.position(self.steps.done)
            self.train_accuracy.reset_state()
            yield epoch + 1, schedule.steps_per_epoch - first


def run(job: Job) -> Trained:
    return _coordinate(job) if job.asynchronous else _together(job)


def _together(job: Job) -> Trained:
    loop = Loop(job)
    steps = loop.steps
    data = pipeline.train_batches(
        job.source, job.global_batch, job.options.seed, skip=steps.done, tasks=len(job.cluster.trainers)
    )
    batches = iter(job.strategy.experimental_distribute_dataset(data))
    loss = accuracy = score = None
    for epoch, count in loop.epochs():
        total = tf.constant(0.0)
        for _ in range(count):
            part = loop.train_step(*next(batches))
            total += part
            steps.ended(partial(float, part))
        loss = float(total) / count  # read from the device only now
        accuracy = float(loop.train_accuracy.result())
        score = jobs.score_of(job, loop.model)
        print(
            f"Epoch {epoch}, Loss: {loss:.4f}, Accuracy: {accuracy:.4f},"
            f" Test Loss: {score.loss:.4f}, Test Accuracy: {score.accuracy:.4f}"
        )
    return steps.close(loop.model, loss, accuracy, lambda: score or jobs.score_of(job, loop.model))


def _coordinate(job: Job) -> Trained:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(job.strategy)
    loop = Loop(job, coordinator.join)
    step = tf.function(lambda batches: loop._train_step(*next(batches)), autograph=False)  # noqa: SLF001
    batches = iter(
        coordinator.create_per_worker_dataset(lambda: pipeline.worker_batches(job.source, job.global_batch))
    )
    loss = accuracy = None
    for epoch, count in loop.epochs():
        losses: list[float] = []
        while len(losses) < count:  # in any order, on any worker
            window = min(AHEAD * len(job.cluster.jobs["worker"]), count - len(losses))
            sent = [coordinator.schedule(step, args=(batches,)) for _ in range(window)]
            coordinator.join()
            losses += [float(promise.fetch()) for promise in sent]
            loop.steps.ended(partial(float, losses[-1]), len(sent))
        loss = sum(losses) / count
        accuracy = float(loop.train_accuracy.result())
        print(f"Epoch {epoch}, Loss: {loss:.4f}, Accuracy: {accuracy:.4f}")
    return loop.steps.close(loop.model, loss, accuracy, lambda: jobs.score_of(job, loop.model))
