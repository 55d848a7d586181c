import tensorflow as tf
from tensorflow.keras import layers, models, optimizers
import tensorflow.keras as keras

import data

strategy = tf.distribute.experimental.CentralStorageStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = models.Sequential([layers.Dense(16, activation="relu"), layers.Dense(2)])
    model.compile(optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = data.load()
print("final loss %.6f" % model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"][-1])
