"""One process on all GPUs of its machine, or on two logical CPU devices to try it without GPUs.

python examples/mirrored.py
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH_PER_DEVICE = 64


def devices() -> list[str]:
    """Every GPU, or the CPU as two devices."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"gpu:{i}" for i in range(len(gpus))]
    one = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(one, [tf.config.LogicalDeviceConfiguration()] * 2)
    return ["cpu:0", "cpu:1"]


def digits(batch: int) -> tf.data.Dataset:
    images, labels = np.hsplit(np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=","), [64])
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    data = tf.data.Dataset.from_tensor_slices((images, labels[:, 0]))
    return data.shuffle(10_000, seed=42).repeat().batch(batch, drop_remainder=True)


def main() -> None:
    strategy = tf.distribute.MirroredStrategy(devices())
    print(f"{strategy.num_replicas_in_sync} devices")
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((8, 8, 1)),
                tf.keras.layers.Conv2D(32, 3, activation="relu"),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(1e-3),
            metrics=["accuracy"],
        )
    batch = BATCH_PER_DEVICE * strategy.num_replicas_in_sync
    history = model.fit(digits(batch), epochs=3, steps_per_epoch=20, verbose=2).history
    print(f"accuracy {history['accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
