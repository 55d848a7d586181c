"""Keras 3: a model with a train_step of its own, a metric, a layer with weights that do not train."""
import keras
import tensorflow as tf
from keras import layers

import data


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(16, activation="relu")
        self.out = layers.Dense(2)
        self.seen = keras.metrics.Mean(name="loss")
        self.criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def call(self, x, training=False):
        return self.out(self.hidden(x))

    @property
    def metrics(self):
        return [self.seen]

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            each = self.criterion(y, self(x, training=True))
            loss = tf.reduce_sum(each) / 32
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        self.seen.update_state(each)
        return {"loss": self.seen.result()}


strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = tf.data.Dataset.from_tensor_slices(data.load()).batch(32).repeat().with_options(options)
with strategy.scope():
    model = Net()
    model.build((None, 8))
    model.compile(optimizer=keras.optimizers.SGD(0.1))
history = model.fit(dataset, steps_per_epoch=8, epochs=2, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
