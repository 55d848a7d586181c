"""The job that both loops receive, and their result: the model and its score."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker_entry.cluster import Cluster
from worker_entry.data import Source, pipeline
from worker_entry.options import Options, folder
from worker_entry.report import Reporter
from worker_entry.schedule import Schedule


@dataclass(frozen=True)
class Job:
    options: Options
    cluster: Cluster
    strategy: Any
    source: Source
    schedule: Schedule
    reporter: Reporter

    @property
    def folder(self) -> Path | None:
        """Return the folder of checkpoints."""
        return folder(self.options.checkpoint_dir)

    @property
    def asynchronous(self) -> bool:
        """Return True if workers compute for parameter servers, directed by this task, the chief."""
        return bool(self.cluster.jobs.get("ps"))

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    @property
    def global_batch(self) -> int:
        return self.options.batch_size * self.replicas


@dataclass(frozen=True)
class Score:
    """Loss and accuracy on all the test data."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Trained:
    model: Any
    loss: float | None  # None: a checkpoint of the last step existed, so nothing was left to train
    accuracy: float | None
    score: Score | None  # None: a validation, which only trains
    steps: int
    steps_per_second: float
    seconds: float


def build(source: Source) -> Any:
    """Return the network of the multi-worker tutorial with Keras; call it inside `strategy.scope()`."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input(source.shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(source.classes),
        ]
    )


def losses(**more: str) -> Any:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, **more)


def optimizer(options: Options) -> Any:
    kinds = tf.keras.optimizers
    made = {"sgd": kinds.SGD, "adam": kinds.Adam, "rmsprop": kinds.RMSprop}[options.optimizer]
    return made(learning_rate=options.learning_rate)


def score_of(job: Job, model: Any) -> Score:
    """Score a model on the test data, each example once; all tasks of a synchronous strategy take part.

    With parameter servers evaluation is inexact (a worker may see an example twice), so the chief does it
    alone.
    """
    batch = job.global_batch
    if job.asynchronous:
        weights, model, batch = model.get_weights(), build(job.source), job.options.batch_size
        model.compile(loss=losses(), metrics=["accuracy"])
        model.set_weights(weights)
    loss, accuracy = model.evaluate(pipeline.finish(job.source.test().cache().batch(batch)), verbose=0)
    return Score(float(loss), float(accuracy))


def digest(weights: Iterable[Any]) -> str:
    """Return a digest that is equal exactly if every array is equal in order, type, shape and bits."""
    made = hashlib.sha256()
    for weight in weights:
        array = np.ascontiguousarray(weight)
        made.update(f"{array.dtype}{array.shape}".encode())
        made.update(array.tobytes())
    return made.hexdigest()[:16]
