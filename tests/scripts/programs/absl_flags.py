"""absl flags, a custom loop with strategy.run, a checkpoint of the chief."""
from absl import app, flags
import tensorflow as tf

import data

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 2, "passes")
flags.DEFINE_float("lr", 0.1, "learning rate")


def main(_):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices(data.load()).batch(32).with_options(options)
    dataset = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(2)])
        optimizer = tf.keras.optimizers.SGD(FLAGS.lr)
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def step(inputs):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(loss_fn(y, model(x, training=True)), global_batch_size=32)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=inputs), axis=None)

    for epoch in range(FLAGS.epochs):
        losses = [float(step(batch)) for batch in dataset]
        print("epoch", epoch, "loss", sum(losses) / len(losses))
    print("final loss %.6f" % (sum(losses) / len(losses)))


if __name__ == "__main__":
    app.run(main)
