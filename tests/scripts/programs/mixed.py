"""Mixed precision, a functional model, a generator, steps_per_epoch."""
import tensorflow as tf

import data

tf.keras.utils.set_random_seed(11)
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
x, y = data.load()


def rows():
    for row in zip(x, y):
        yield row


signature = (tf.TensorSpec((8,), tf.float32), tf.TensorSpec((), tf.int64))
dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(32, drop_remainder=True).repeat()
with strategy.scope():
    inputs = tf.keras.Input((8,))
    outputs = tf.keras.layers.Dense(2, dtype="float32")(tf.keras.layers.Dense(16, "relu")(inputs))
    model = tf.keras.Model(inputs, outputs)
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(dataset, epochs=12, steps_per_epoch=8, verbose=0)
print("final loss %.6f" % history.history["loss"][-1])
