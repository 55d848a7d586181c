"""No Keras at all: tf.Module, variables, a loop, XLA, a summary writer of the chief, tf.print."""
import tensorflow as tf

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()


class Linear(tf.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = tf.Variable(tf.zeros([inputs, outputs]), name="w")
        self.b = tf.Variable(tf.zeros([outputs]), name="b")

    def __call__(self, x):
        return x @ self.w + self.b


with strategy.scope():
    model = Linear(8, 2)
x, y = data.load()


def pieces(context):
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(context.get_per_replica_batch_size(256)).repeat()


rows = iter(strategy.distribute_datasets_from_function(pieces))
writer = tf.summary.create_file_writer("summaries") if strategy.cluster_resolver.task_id == 0 else tf.summary.create_noop_writer()


@tf.function
def gradients(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(b, model(a))) / 256
    return loss, tape.gradient(loss, [model.w, model.b])


@tf.function
def step(batch):
    def replica(a, b):
        loss, grads = gradients(a, b)
        grads = tf.distribute.get_replica_context().all_reduce("sum", grads)
        for variable, grad in zip([model.w, model.b], grads):
            variable.assign_sub(0.5 * grad)
        return loss

    return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)


for i in range(10):
    loss = step(next(rows))
    with writer.as_default(step=i):
        tf.summary.scalar("loss", loss)
    tf.print("step", i, "loss", loss)
print("final loss %.6f" % loss)
