"""The multi-worker tutorial with Keras: one model, `model.fit`, as many tasks as TF_CONFIG names.

orchestrate launch -- examples/fit.py
"""

import json
import os

import tensorflow as tf
from sklearn.datasets import load_digits

BATCH_PER_TASK = 64


def digits(global_batch: int) -> tf.data.Dataset:
    """Scikit-learn's handwritten digits, 8 x 8; shuffled with a seed, so that every task sees one order."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.shuffle(10_000, seed=42).repeat().batch(global_batch, drop_remainder=True)


def build_and_compile() -> tf.keras.Model:
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(1e-3),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    # The strategy comes first: it starts this task's server, which nothing of TensorFlow may precede.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build_and_compile()
    global_batch = BATCH_PER_TASK * strategy.num_replicas_in_sync
    history = model.fit(digits(global_batch), epochs=3, steps_per_epoch=20, verbose=2).history
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "worker", "index": 0})
    print(f"{task['type']}/{task['index']}: accuracy {history['accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
