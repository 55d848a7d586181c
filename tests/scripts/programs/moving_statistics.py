"""BatchNormalization and several steps per execution, with Keras 3; what is saved holds the statistics of all."""
import keras
import tensorflow as tf

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dense(2),
    ])
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=4,
    )
batches = tf.data.Dataset.from_tensor_slices(data.load()).batch(32)
last = batches.unbatch().take(1).batch(1)  # of which one worker gets nothing
model.fit(batches.concatenate(last), epochs=2, verbose=2)
print("moving", [float(abs(weight).sum()) for weight in model.layers[1].get_weights()[2:]])
print("final loss %.6f" % model.evaluate(batches, verbose=0))
