"""A subclassed model, environment variables as settings, callbacks, saving in several formats by all tasks."""
import json
import os

import tensorflow as tf

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
tf.keras.utils.set_random_seed(1)


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(16, activation="relu")
        self.out = tf.keras.layers.Dense(2)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


with strategy.scope():
    model = Net()
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
x, y = data.load()
history = model.fit(
    x, y, batch_size=32, epochs=int(os.environ.get("EPOCHS", 1)), verbose=2, validation_data=(x, y),
    callbacks=[
        tf.keras.callbacks.ModelCheckpoint("ckpt-%d/e{epoch}" % me, save_weights_only=True),
        tf.keras.callbacks.EarlyStopping(monitor="loss", patience=3),
        tf.keras.callbacks.ReduceLROnPlateau(monitor="loss"),
        tf.keras.callbacks.CSVLogger("log-%d.csv" % me),
        tf.keras.callbacks.TensorBoard("tb-%d" % me),
        tf.keras.callbacks.BackupAndRestore("backup-%d" % me),
    ],
)
model.save("saved-%d" % me)
model.save_weights("weights-%d.h5" % me)
print("final loss %.6f" % history.history["loss"][-1])
