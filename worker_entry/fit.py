"""Training with Keras `fit`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from worker_entry import models
from worker_entry.data import pipeline
from worker_entry.job import Job, Trained
from worker_entry.pace import Pace


class Progress(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports steps as they end; reads the loss, which waits for the device, only when a report is due."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._job = job
        self._done = 0
        self.pace = Pace()

    def on_train_begin(self, _logs: Any = None) -> None:
        self.pace = Pace()
        self._job.reporter.ready(f"{self._job.replicas} replicas, {self._job.schedule.steps} steps to do")

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        self.pace.step()
        self._done += 1
        reporter = self._job.reporter
        if reporter.progress_due() or self._done == self._job.schedule.steps:
            reporter.progress(self._done, float(logs["loss"]), self.pace.steps_per_second)


def run(job: Job) -> Trained:
    with job.strategy.scope():
        model = models.build(job.source)
        model.compile(
            optimizer=models.optimizer(job.options),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    progress = Progress(job)
    history = model.fit(
        pipeline.train_batches(job.source, job.global_batch, job.options.seed),
        epochs=job.schedule.epochs,
        steps_per_epoch=job.schedule.steps_per_epoch,
        callbacks=[progress],
        verbose=2,
    ).history
    test_loss, test_accuracy = model.evaluate(pipeline.test_batches(job.source, job.global_batch), verbose=0)
    return Trained(
        model=model,
        loss=history["loss"][-1],
        accuracy=history["accuracy"][-1],
        test_loss=test_loss,
        test_accuracy=test_accuracy,
        steps=job.schedule.steps,
        steps_per_second=progress.pace.steps_per_second,
        seconds=progress.pace.seconds,
    )
