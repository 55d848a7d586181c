import data
import keras
import tensorflow as tf
from keras import layers
from keras.callbacks import LearningRateScheduler, ModelCheckpoint

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = tf.data.Dataset.from_tensor_slices(data.load()).batch(32).repeat().with_options(options)
with strategy.scope():
    model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(2)])
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
history = model.fit(
    dataset,
    epochs=2,
    steps_per_epoch=8,
    verbose=2,
    callbacks=[
        ModelCheckpoint("best.weights.h5", save_weights_only=True),
        LearningRateScheduler(lambda _: 0.1),
    ],
)
model.load_weights("best.weights.h5")
print("keras", keras.__version__, "final loss %.6f" % history.history["loss"][-1])
