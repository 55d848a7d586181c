"""Parameter servers with DatasetCreator, a partitioner, and the fail-fast variable of the tutorial."""
import json
import os
import tensorflow as tf

import data

os.environ["GRPC_FAIL_FAST"] = "use_caller"
cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()

variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=64, max_shards=len(json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"])
)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=variable_partitioner)


def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(32)
    dataset = tf.data.Dataset.from_tensor_slices(data.load()).shuffle(64, seed=2).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size).prefetch(2)


with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.legacy.SGD(0.1), loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=4)
callbacks = [
    tf.keras.callbacks.ModelCheckpoint(filepath=os.path.join(os.environ["MODEL_DIR"], "ckpt"), save_weights_only=True),
    tf.keras.callbacks.TensorBoard(log_dir="ps-logs"),
]
history = model.fit(tf.keras.utils.experimental.DatasetCreator(dataset_fn), epochs=3, steps_per_epoch=16, callbacks=callbacks, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
