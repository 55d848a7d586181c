"""Callbacks of every kind, and of one's own, with tf.keras; a validation set; early stopping that keeps the best."""
import datetime
import os

import tensorflow as tf

import data


class Times(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.began = datetime.datetime.now()

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, "took", datetime.datetime.now() - self.began, sorted(logs))


strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
tf.keras.utils.set_random_seed(1)
x, y = data.load()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(0.1), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(
    x, y, batch_size=32, epochs=2, shuffle=False, verbose=2, validation_data=(x[:64], y[:64]),
    callbacks=[
        Times(),
        tf.keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("trained")),
        tf.keras.callbacks.ModelCheckpoint("best/ckpt", monitor="val_loss", save_best_only=True, save_weights_only=True),
        tf.keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        tf.keras.callbacks.ReduceLROnPlateau(patience=3),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr, verbose=1),
        tf.keras.callbacks.CSVLogger(f"history-{me}.csv", append=True),
        tf.keras.callbacks.TensorBoard(os.path.join("logs", str(me)), histogram_freq=1, update_freq="batch"),
        tf.keras.callbacks.TerminateOnNaN(),
        tf.keras.callbacks.BackupAndRestore(f"backup-{me}", save_freq="epoch"),
    ],
)
print("final loss %.6f" % history.history["loss"][-1])
