"""The custom-loop tutorial: per-example losses over the global batch, a step in `tf.function`.

orchestrate launch -- examples/custom_loop.py
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

EPOCHS, STEPS, BATCH_PER_TASK = 3, 20, 64

strategy = tf.distribute.MultiWorkerMirroredStrategy()
GLOBAL_BATCH = BATCH_PER_TASK * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(1e-3)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def digits() -> tf.distribute.DistributedDataset:
    images, labels = np.hsplit(np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=","), [64])
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    data = tf.data.Dataset.from_tensor_slices((images, labels[:, 0]))
    data = data.shuffle(10_000, seed=42).repeat().batch(GLOBAL_BATCH, drop_remainder=True)
    return strategy.experimental_distribute_dataset(data)


@tf.function
def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    def on_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # Divided by the global batch, so that the sum over replicas is the mean over examples.
            loss = tf.nn.compute_average_loss(cross_entropy(labels, logits), global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    return strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None)


batches = iter(digits())
for epoch in range(1, EPOCHS + 1):
    accuracy.reset_state()
    losses = [float(train_step(next(batches))) for _ in range(STEPS)]
    print(f"epoch {epoch}: loss {sum(losses) / STEPS:.4f}, accuracy {float(accuracy.result()):.4f}")
