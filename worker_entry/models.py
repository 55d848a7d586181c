"""The networks of the tutorials and their optimizers; built inside `strategy.scope()` by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from worker_entry.data.source import Source
from worker_entry.options import Options


@dataclass(frozen=True)
class Network:
    model: Any
    from_logits: bool  # whether its outputs are logits or probabilities

    def loss(self, reduction: str | None = None) -> Any:
        kind = tf.keras.losses.SparseCategoricalCrossentropy
        if reduction is None:
            return kind(from_logits=self.from_logits)
        return kind(from_logits=self.from_logits, reduction=reduction)


def build(options: Options, source: Source) -> Network:
    fashion = options.model == "fashion"
    model = tf.keras.Sequential(_fashion(options, source) if fashion else _cnn(options, source))
    if options.jit:
        # The network and not the whole step: XLA does not know the sums between tasks.
        model.call = tf.function(model.call, jit_compile=True)
    return Network(model, from_logits=not fashion)


def _cnn(options: Options, source: Source) -> Sequence[Any]:
    """Of the multi-worker tutorial with Keras."""
    layers = tf.keras.layers
    return [
        tf.keras.Input(source.shape),
        layers.Conv2D(32, 3, activation="relu", kernel_regularizer=_l2(options)),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu", kernel_regularizer=_l2(options)),
        layers.Dense(source.classes, dtype="float32"),
    ]


def _fashion(options: Options, source: Source) -> Sequence[Any]:
    """Of the custom-loop tutorial."""
    layers = tf.keras.layers
    return [
        tf.keras.Input(source.shape),
        layers.Conv2D(32, 3, activation="relu", kernel_regularizer=_l2(options)),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu", kernel_regularizer=_l2(options)),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu", kernel_regularizer=_l2(options)),
        layers.Dense(source.classes, activation="softmax", dtype="float32"),
    ]


def _l2(options: Options) -> Any:
    return tf.keras.regularizers.L2(options.l2) if options.l2 else None


def optimizer(options: Options) -> Any:
    made = {
        "sgd": tf.keras.optimizers.SGD,
        "adam": tf.keras.optimizers.Adam,
        "rmsprop": tf.keras.optimizers.RMSprop,
    }[options.optimizer]
    return made(learning_rate=options.learning_rate or 1e-3)
