"""The callbacks of Keras 3, each task with paths of its own; a model that is saved, and read again."""
import json
import os

import numpy as np
import tensorflow as tf
from keras import Sequential, callbacks, layers, losses, models, optimizers, utils

import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
out = os.path.join("out", f"worker-{me}")
os.makedirs(out, exist_ok=True)
utils.set_random_seed(1)
with strategy.scope():
    model = Sequential([layers.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(2)])
    model.compile(optimizer=optimizers.SGD(0.1), loss=losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
x, y = data.load()
history = model.fit(
    x, y, batch_size=32, epochs=2, shuffle=False, verbose="auto", validation_data=(x[:64], y[:64]),
    callbacks=[
        callbacks.ModelCheckpoint(os.path.join(out, "{epoch:02d}.keras"), monitor="val_loss", save_best_only=True),
        callbacks.EarlyStopping(monitor="val_loss", patience=4),
        callbacks.ReduceLROnPlateau(patience=4),
        callbacks.CSVLogger(os.path.join(out, "log.csv")),
        callbacks.TensorBoard(log_dir=os.path.join(out, "tb")),
        callbacks.TerminateOnNaN(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs)),
    ],
)
assert os.path.exists(os.path.join(out, "01.keras"))
model.save(os.path.join(out, "last.keras"))
again = models.load_model(os.path.join(out, "last.keras"))
assert np.allclose(model.predict(x[:32], verbose=0), again.predict(x[:32], verbose=0), atol=1e-6)
model.export(os.path.join(out, "served"), verbose=False)
print("final loss %.6f" % history.history["loss"][-1])
