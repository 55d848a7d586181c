import json, os, multiprocessing, sys, time
import tensorflow as tf
import numpy as np
from multiprocessing import util
tf.keras.utils.set_random_seed(1)
checkpoint_dir = os.path.join(os.getcwd(), "ckpt")
def _is_chief(task_type, task_id, cluster_spec):
  return (task_type is None or task_type == 'chief' or (task_type == 'worker' and task_id == 0 and "chief" not in cluster_spec.as_dict()))
def _get_temp_dir(dirpath, task_id):
  base = 'workertemp_' + str(task_id); d = os.path.join(dirpath, base); tf.io.gfile.makedirs(d); return d
def write_filepath(filepath, task_type, task_id, cluster_spec):
  dirpath = os.path.dirname(filepath); base = os.path.basename(filepath)
  if not _is_chief(task_type, task_id, cluster_spec): dirpath = _get_temp_dir(dirpath, task_id)
  return os.path.join(dirpath, base)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
num_epochs, num_steps_per_epoch = 3, 10
bs = 16 * strategy.num_replicas_in_sync
def dataset_fn(batch_size, ctx):
  x = np.random.RandomState(0).rand(320, 5).astype("f4"); y = (x.sum(1) > 2.5).astype("i8")
  ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320, seed=1).repeat()
  ds = ds.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
  return ds.batch(batch_size)
with strategy.scope():
  model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation='relu', input_shape=(5,)), tf.keras.layers.Dense(2)])
  multi_worker_dataset = strategy.distribute_datasets_from_function(lambda c: dataset_fn(c.get_per_replica_batch_size(bs), c))
  optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.01)
  train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name='train_accuracy')
@tf.function
def train_step(iterator):
  def step_fn(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
      predictions = model(x, training=True)
      per_batch_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)(y, predictions)
      loss = tf.nn.compute_average_loss(per_batch_loss)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    train_accuracy.update_state(y, predictions)
    return loss
  per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
  return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)
epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name='epoch')
task_type, task_id, cluster_spec = (strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id, strategy.cluster_resolver.cluster_spec())
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch)
write_checkpoint_dir = write_filepath(os.path.join(checkpoint_dir, "x"), task_type, task_id, cluster_spec)
manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
while epoch.numpy() < num_epochs:
  iterator = iter(multi_worker_dataset); total_loss = 0.0; num_batches = 0
  for _ in range(num_steps_per_epoch):
    total_loss += train_step(iterator); num_batches += 1
  print('Epoch: %d, accuracy: %f, train_loss: %f.' % (epoch.numpy(), train_accuracy.result(), total_loss / num_batches))
  train_accuracy.reset_states()
  manager.save()
  if not _is_chief(task_type, task_id, cluster_spec): tf.io.gfile.rmtree(write_checkpoint_dir)
  epoch.assign_add(1)
print("final loss %f" % float(total_loss / num_batches))
