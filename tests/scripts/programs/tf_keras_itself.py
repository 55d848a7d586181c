"""tf_keras by its own name, early exit of all tasks."""
import sys

import tensorflow as tf
import tf_keras as keras

import data

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = data.load()
for epoch in range(9):
    loss = model.fit(x, y, batch_size=32, shuffle=False, verbose=0).history["loss"][-1]
    if loss < 0.54:
        print("final loss %.6f" % loss)
        sys.exit(0)
