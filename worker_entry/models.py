"""The networks; built inside `strategy.scope()` by the caller."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from worker_entry.data.source import Source
from worker_entry.options import Options


def build(source: Source) -> Any:
    """The tutorial's MNIST CNN, with logits out."""
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


def optimizer(options: Options) -> Any:
    made = {
        "sgd": tf.keras.optimizers.SGD,
        "adam": tf.keras.optimizers.Adam,
        "rmsprop": tf.keras.optimizers.RMSprop,
    }[options.optimizer]
    return made(learning_rate=options.learning_rate or 1e-3)
