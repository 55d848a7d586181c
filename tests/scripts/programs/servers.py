import data
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.optimizers import SGD

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
dataset = tf.data.Dataset.from_tensor_slices(data.load()).shuffle(64, seed=1).repeat().batch(32)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
    model.compile(optimizer=SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(dataset, epochs=3, steps_per_epoch=16, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
