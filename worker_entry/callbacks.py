"""The callbacks people expect of `fit`; who writes what is settled here and nowhere else.

Every task runs every callback, for some of them save by a collective act. Of the two that write the same
path on every task, ModelCheckpoint and TensorBoard, tf_keras gives the tasks other than the chief a
temporary folder and removes it. The CSV file is the leader's alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.failure import ExpectedError
from worker_entry.job import Job
from worker_entry.schedule import decayed
from worker_entry.steps import Steps


def make(job: Job, steps: Steps) -> list[Any]:
    return [StepCallback(steps), *_asked_for(job)]


def _asked_for(job: Job) -> Iterator[Any]:
    options, keras = job.options, tf.keras.callbacks
    yield RatePrinter()
    if options.decay:
        yield keras.LearningRateScheduler(lambda epoch: decayed(options.learning_rate or 1e-3, epoch))
    if options.early_stopping:
        # The loss is the global one, so all tasks stop at the same epoch.
        yield keras.EarlyStopping(monitor="loss", patience=options.early_stopping)
    if options.weights_dir:
        folder = Path(options.weights_dir).expanduser()
        yield keras.ModelCheckpoint(str(folder / "epoch-{epoch}"), save_weights_only=True)
    if options.tensorboard_dir:
        if importlib.util.find_spec("tensorboard") is None:
            raise ExpectedError(
                "--tensorboard-dir needs tensorboard",
                why="it is not installed",
                hint="pip install tensorboard",
            )
        yield keras.TensorBoard(str(Path(options.tensorboard_dir).expanduser()))
    if options.csv and job.cluster.is_leader:
        path = Path(options.csv).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        yield keras.CSVLogger(str(path), append=True)


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
    """With parameter servers the logs of a step are a promise, kept when some worker has done it."""
    return float((logs.fetch() if hasattr(logs, "fetch") else logs)["loss"])


class RatePrinter(tf.keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, _logs: Any = None) -> None:
        rate = tf.keras.backend.get_value(self.model.optimizer.learning_rate)
        print(f"Learning rate for epoch {epoch + 1} is {float(rate):g}")
