"""float16 with a LossScaleOptimizer of Keras 3, a loop of one's own."""
import keras
import tensorflow as tf

import data

keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2, dtype="float32")])
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
x, y = data.load()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32, drop_remainder=True).repeat(2).with_options(options)


@tf.function
def step(batch):
    def replica(a, b):
        with tf.GradientTape() as tape:
            each = keras.losses.sparse_categorical_crossentropy(b, model(a, training=True), from_logits=True)
            loss = tf.reduce_sum(each) / 32.0
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=batch), axis=None)


losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset(dataset)]
print("final loss %.6f" % (sum(losses[8:]) / 8))
