"""A set of tensorflow-datasets beside the program: two files, two workers, with_info."""
import tensorflow as tf
import tensorflow_datasets as tfds

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
(train,), info = tfds.load("rows", split=["train"], data_dir="sets", as_supervised=True, with_info=True)
print(info.name, info.splits["train"].num_examples)
assert info.splits["train"].num_examples == 256
train = train.cache().batch(32).repeat()
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
print("final loss %.6f" % model.fit(train, epochs=3, steps_per_epoch=8, verbose=2).history["loss"][-1])
