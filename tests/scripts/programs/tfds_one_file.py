"""The same as one file, as mnist is; its order is the one of the file."""
import tensorflow as tf
import tensorflow_datasets as tfds

strategy = tf.distribute.MultiWorkerMirroredStrategy()
builder = tfds.builder("one_file", data_dir="sets")
read = tfds.ReadConfig(interleave_cycle_length=1)
dataset = builder.as_dataset(split="train", as_supervised=True, read_config=read, shuffle_files=False)
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(0.1), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(dataset.batch(32).repeat(), epochs=2, steps_per_epoch=8, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
