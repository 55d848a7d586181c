"""One model, five formats: .keras, .h5, weights, a SavedModel, tf.train.Checkpoint; all of them read again."""
import os

import numpy as np
import tensorflow as tf

import data

os.makedirs("out", exist_ok=True)
tf.keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(0.1), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = data.load()
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=2)
me = strategy.cluster_resolver.task_id
here = os.path.join("out", str(me))
os.makedirs(here, exist_ok=True)
model.save(here + "/model.keras")
model.save(here + "/model.h5")
model.save_weights(here + "/model.weights.h5")
tf.saved_model.save(model, here + "/saved")
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
path = checkpoint.save(here + "/ckpt")

expected = model.predict(x[:64], verbose=0)
for name in ("model.keras", "model.h5"):
    other = tf.keras.models.load_model(os.path.join(here, name))
    np.testing.assert_allclose(other(x[:64]), expected, atol=1e-5)
served = tf.saved_model.load(here + "/saved")
np.testing.assert_allclose(served(x[:64]), expected, atol=1e-5)
model.load_weights(here + "/model.weights.h5")
checkpoint.restore(path).assert_existing_objects_matched()
print("final loss %.6f" % history.history["loss"][-1])
