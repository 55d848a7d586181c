"""Training with a loop of our own: what `fit` does, said out loud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from worker_entry import models
from worker_entry.data import pipeline
from worker_entry.job import Job, Score, Trained
from worker_entry.steps import Steps

EPOCHS_A_CHECKPOINT = 2  # the tutorial's


class CustomLoop:
    """The variables of one training and its two compiled steps."""

    def __init__(self, job: Job) -> None:
        self._job = job
        with job.strategy.scope():
            self.network = models.build(job.options, job.source)
            self.model = self.network.model
            self.optimizer = models.optimizer(job.options)
            self.optimizer.build(self.model.trainable_variables)
            self._losses = self.network.loss(job.options.reduction)
            self.train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
            self.test_loss = tf.keras.metrics.Mean()
            self.test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
            self.steps = Steps(job, self.model, self.optimizer, epochs_a_save=EPOCHS_A_CHECKPOINT)
        self.train_step = tf.function(self._train_step, autograph=False)
        self.test_step = tf.function(self._test_step, autograph=False)

    def loss(self, labels: Any, outputs: Any) -> Any:
        """This replica's part of the loss; the parts add up to the mean over the global batch.

        A mean over the replica's own examples would make the sum, and so every step, too large by the number
        of replicas. Penalties on weights are the same on every replica: each adds its share.
        """
        losses = self._losses(labels, outputs)
        if self._job.options.reduction == "sum":
            loss = losses / self._job.global_batch
        else:
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self._job.global_batch)
        if self.model.losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))
        return loss

    def _train_step(self, batch: tuple[Any, Any]) -> Any:
        parts = self._job.strategy.run(self._train_on_replica, args=batch)
        return self._job.strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    def _train_on_replica(self, images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = self.model(images, training=True)
            loss = self.loss(labels, outputs)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.steps.waits.after(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.train_accuracy.update_state(labels, outputs)
        return loss

    def _test_step(self, batch: tuple[Any, Any]) -> None:
        self._job.strategy.run(self._test_on_replica, args=batch)

    def _test_on_replica(self, images: Any, labels: Any) -> None:
        outputs = self.model(images, training=False)
        each = tf.keras.losses.sparse_categorical_crossentropy(
            labels, outputs, from_logits=self.network.from_logits
        )
        self.test_loss.update_state(each)
        self.test_accuracy.update_state(labels, outputs)


def run(job: Job) -> Trained:
    loop = CustomLoop(job)
    strategy, schedule, steps = job.strategy, job.schedule, loop.steps
    data = pipeline.train_batches(
        job.source, job.global_batch, job.options.seed, skip=steps.done, tasks=len(job.cluster.trainers)
    )
    batches = iter(strategy.experimental_distribute_dataset(data))
    test = strategy.experimental_distribute_dataset(pipeline.test_batches(job.source, job.global_batch))
    first_epoch, first_step = schedule.position(steps.done)
    loss = accuracy = None
    for epoch in range(first_epoch, schedule.epochs):
        left = schedule.steps_per_epoch - (first_step if epoch == first_epoch else 0)
        loop.train_accuracy.reset_state()
        loss = _epoch(loop, batches, left)
        accuracy = float(loop.train_accuracy.result())
        _evaluate(loop, test)
        print(
            f"Epoch {epoch + 1}, Loss: {loss:.4f}, Accuracy: {accuracy:.4f},"
            f" Test Loss: {float(loop.test_loss.result()):.4f},"
            f" Test Accuracy: {float(loop.test_accuracy.result()):.4f}"
        )
    steps.close()
    if loss is None:
        _evaluate(loop, test)
    return Trained(
        network=loop.network,
        loss=loss,
        accuracy=accuracy,
        score=Score(float(loop.test_loss.result()), float(loop.test_accuracy.result())),
        steps=steps.done,
        steps_per_second=steps.pace.steps_per_second,
        seconds=steps.pace.seconds,
    )


def _epoch(loop: CustomLoop, batches: Iterator[Any], steps: int) -> float:
    """The mean loss of the steps; it stays on the device until the end, for reading it waits for the step."""
    total = tf.constant(0.0)
    for _ in range(steps):
        loss = loop.train_step(next(batches))
        total += loss
        loop.steps.ended(_reader(loss))
    return float(total) / steps


def _reader(loss: Any) -> Callable[[], float]:
    return lambda: float(loss)


def _evaluate(loop: CustomLoop, test: Any) -> None:
    loop.test_loss.reset_state()
    loop.test_accuracy.reset_state()
    for batch in test:
        loop.test_step(batch)
