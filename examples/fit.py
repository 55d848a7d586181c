"""The multi-worker tutorial with Keras: one model, `model.fit`, as many tasks as TF_CONFIG names.

orchestrate launch -- examples/fit.py
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH_PER_TASK = 64


def digits(global_batch: int) -> tf.data.Dataset:
    """Real handwritten digits, enlarged to MNIST's shape; the seed gives every task the same order."""
    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    images = np.pad(images.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2), (0, 0)))
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.shuffle(10_000, seed=42).repeat().batch(global_batch, drop_remainder=True)


def build_and_compile() -> tf.keras.Model:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(1e-3),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    # The strategy comes first: it starts this task's server, which must precede all other TensorFlow calls.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build_and_compile()
    data = digits(BATCH_PER_TASK * strategy.num_replicas_in_sync)
    history = model.fit(data, epochs=3, steps_per_epoch=20, verbose=2).history
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "worker", "index": 0})
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()[:16]
    print(f"{task['type']}/{task['index']}: weights {digest}, accuracy {history['accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
