"""A loss of activities, and moving statistics, on tasks with two devices each: processors that stand for GPUs."""
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

PAIR = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], PAIR)
CollectiveAllReduceExtended._initialize_local_devices = lambda self, resolver, task: (
    tuple(f"{task}/device:CPU:{index}" for index in range(2)),
    "CPU",
)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert strategy.num_replicas_in_sync == 4
x = np.random.RandomState(0).randn(32, 4).astype("f")
with strategy.scope():
    inputs = keras.Input((4,))
    hidden = layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(1), activity_regularizer="l2")(inputs)
    unused = layers.Rescaling(0.0)(layers.BatchNormalization()(hidden))
    outputs = layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))(layers.Add()([hidden, unused]))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, x[:, :1], batch_size=16, epochs=4, verbose=0, shuffle=False)
print("final loss %.6f" % history.history["loss"][-1])
