"""The parameter-server tutorial: the chief coordinates, ps tasks hold the variables, workers compute.

orchestrate launch -- examples/parameter_server.py     (roles chief, worker, ps in hosts.toml)
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

EPOCHS, STEPS, BATCH = 3, 40, 64
IMAGES, LABELS = np.hsplit(np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=","), [64])


def batches() -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices((IMAGES.astype("float32") / 16, LABELS[:, 0].astype(np.int64)))
    return data.shuffle(10_000).repeat().batch(BATCH, drop_remainder=True)


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """A worker or ps only serves requests, without end: `orchestrate` stops it after the chief."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def coordinate(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])
        optimizer = tf.keras.optimizers.Adam(1e-2)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step(iterator: tf.data.Iterator) -> None:
        def on_replica(images: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.nn.compute_average_loss(losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(labels, logits)

        strategy.run(on_replica, args=next(iterator))

    per_worker = iter(coordinator.create_per_worker_dataset(batches))
    for epoch in range(1, EPOCHS + 1):
        accuracy.reset_state()
        for _ in range(STEPS):
            coordinator.schedule(step, args=(per_worker,))
        coordinator.join()
        print(f"epoch {epoch}: accuracy {float(accuracy.result()):.4f}")


if __name__ == "__main__":
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    coordinate(cluster) if cluster.task_type == "chief" else serve(cluster)
