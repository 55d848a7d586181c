"""The custom loop of a parameter-server cluster: the chief sends steps off, workers do them when they can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from worker_entry import models, scoring
from worker_entry.data import pipeline
from worker_entry.job import Job, Trained
from worker_entry.steps import AHEAD, Steps


class CoordinatorLoop:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(job.strategy)
        with job.strategy.scope():
            self.network = models.build(job.options, job.source)
            self.model = self.network.model
            self.optimizer = models.optimizer(job.options)
            self.optimizer.build(self.model.trainable_variables)
            self._losses = self.network.loss("none")
            self.accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
            self.steps = Steps(job, self.model, self.optimizer, settle=self.coordinator.join)
        self.step = tf.function(self._step, autograph=False)

    def _step(self, batches: Any) -> Any:
        parts = self._job.strategy.run(self._on_replica, args=next(batches))
        return self._job.strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    def _on_replica(self, images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = self.model(images, training=True)
            losses = self._losses(labels, outputs)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self._job.global_batch)
            if self.model.losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.accuracy.update_state(labels, outputs)
        return loss


def run(job: Job) -> Trained:
    loop = CoordinatorLoop(job)
    steps, schedule = loop.steps, job.schedule
    batches = iter(
        loop.coordinator.create_per_worker_dataset(
            lambda: pipeline.worker_batches(job.source, job.global_batch)
        )
    )
    loss = accuracy = None
    while steps.done < schedule.steps:
        epoch, first = schedule.position(steps.done)
        loop.accuracy.reset_state()
        loss = _epoch(
            loop, batches, schedule.steps_per_epoch - first, AHEAD * len(job.cluster.jobs["worker"])
        )
        accuracy = float(loop.accuracy.result())
        print(f"Epoch {epoch + 1}, Loss: {loss:.4f}, Accuracy: {accuracy:.4f}")
    steps.close()
    return Trained(
        network=loop.network,
        loss=loss,
        accuracy=accuracy,
        score=scoring.of(job, loop.network),
        steps=steps.done,
        steps_per_second=steps.pace.steps_per_second,
        seconds=steps.pace.seconds,
    )


def _epoch(loop: CoordinatorLoop, batches: Any, steps: int, window: int) -> float:
    """The mean loss of so many steps, in whatever order and on whichever worker they were done."""
    losses: list[float] = []
    while len(losses) < steps:
        sent = [
            loop.coordinator.schedule(loop.step, args=(batches,))
            for _ in range(min(window, steps - len(losses)))
        ]
        loop.coordinator.join()
        losses += [float(one.fetch()) for one in sent]
        loop.steps.ended(_constant(losses[-1]), len(sent))
    return sum(losses) / steps


def _constant(value: float) -> Callable[[], float]:
    return lambda: value
