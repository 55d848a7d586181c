"""Parameter servers with a ClusterCoordinator loop."""
import tensorflow as tf

import data

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    w = tf.Variable(tf.zeros((8, 1)))


def dataset_fn():
    x, y = data.load()
    return tf.data.Dataset.from_tensor_slices((x, tf.cast(y, tf.float32)[:, None])).repeat().batch(32)


@tf.function
def step(iterator):
    x, y = next(iterator)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x @ w))
    w.assign_sub(0.5 * tape.gradient(loss, w))
    return loss


iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
for _ in range(40):
    loss = coordinator.schedule(step, args=(iterator,))
coordinator.join()
print("final loss %.6f" % loss.fetch())
