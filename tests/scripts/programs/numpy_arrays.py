"""Arrays in memory, a custom loop with metrics, a CheckpointManager that only the chief keeps."""
import os

import numpy as np
import tensorflow as tf

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
BATCH = 32
np.savez("arrays-%d.npz" % strategy.cluster_resolver.task_id, *data.load())
with np.load("arrays-%d.npz" % strategy.cluster_resolver.task_id) as arrays:
    x, y = arrays["arr_0"], arrays["arr_1"]
train = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
train = strategy.experimental_distribute_dataset(train.with_options(options))
tf.random.set_seed(1)
with strategy.scope():
    net = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu", input_shape=(8,), kernel_initializer=tf.keras.initializers.GlorotUniform(7)), tf.keras.layers.Dense(2, kernel_initializer=tf.keras.initializers.GlorotUniform(8))])
    opt = tf.keras.optimizers.Adam(0.01)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    epoch = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(net=net, opt=opt, epoch=epoch)

chief = strategy.cluster_resolver.task_id == 0
folder = "ckpt" if chief else "ckpt-of-%d" % strategy.cluster_resolver.task_id
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)


@tf.function
def one(batch):
    def inner(a, b):
        with tf.GradientTape() as tape:
            logits = net(a, training=True)
            each = tf.keras.losses.sparse_categorical_crossentropy(b, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
        opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        accuracy.update_state(b, logits)
        return loss

    return strategy.reduce("SUM", strategy.run(inner, args=batch), axis=None)


while epoch.numpy() < 3:
    accuracy.reset_state()
    losses = [one(batch).numpy() for batch in train]
    epoch.assign_add(1)
    manager.save()
    if not chief:
        tf.io.gfile.rmtree(folder)
    print("epoch %d: accuracy %.3f" % (epoch.numpy(), accuracy.result()))
assert os.path.isdir("ckpt") == chief
print("final loss %.6f" % np.mean(losses))
