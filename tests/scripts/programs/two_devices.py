"""MirroredStrategy over two logical CPUs, distribute_datasets_from_function, TF_CONFIG taken away as the tutorial does."""
import os

os.environ.pop("TF_CONFIG", None)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

import data

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print("replicas:", strategy.num_replicas_in_sync)


def dataset_fn(context):
    batch = context.get_per_replica_batch_size(32)
    rows = tf.data.Dataset.from_tensor_slices(data.load()).repeat().batch(batch)
    return rows.shard(context.num_input_pipelines, context.input_pipeline_id)


dataset = strategy.distribute_datasets_from_function(dataset_fn)
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(0.1), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
print("final loss %.6f" % model.fit(dataset, steps_per_epoch=8, epochs=2, verbose=0).history["loss"][-1])
