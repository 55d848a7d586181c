"""Keras 3 on several tasks: every task saves the model in the new format, and reads it again."""
import json
import os

import keras
import numpy as np
import tensorflow as tf

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = data.load()
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
path = "model-%d.keras" % task["index"]
model.save(path)
again = keras.models.load_model(path)
before, after = model.predict(x[:32], verbose=0), again.predict(x[:32], verbose=0)
assert np.allclose(before, after, atol=1e-6), "what was saved is another model"
model.export("served-%d" % task["index"], verbose=False)
print("final loss %.6f" % history.history["loss"][-1])
