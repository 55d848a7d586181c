"""Images: augmentation layers, convolutions, synchronized batch normalization, dropout, a schedule of the rate, XLA."""
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rng = np.random.default_rng(1)
labels = rng.integers(0, 2, 256)
images = (rng.normal(size=(256, 8, 8, 3)) + labels[:, None, None, None]).astype("float32")
tf.keras.utils.set_random_seed(4)
L = tf.keras.layers
with strategy.scope():
    inputs = tf.keras.Input((8, 8, 3))
    h = L.RandomFlip("horizontal")(inputs)
    h = L.Conv2D(8, 3, padding="same", use_bias=False)(h)
    h = L.BatchNormalization(synchronized=True)(h)
    h = L.ReLU()(h)
    h = L.Add()([h, L.Conv2D(8, 1)(inputs)])
    h = L.Dropout(0.1)(L.GlobalAveragePooling2D()(h))
    outputs = L.Dense(2)(h)
    model = tf.keras.Model(inputs, outputs)
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.9)
    model.compile(
        tf.keras.optimizers.Adam(schedule), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False,
    )
history = model.fit(images, labels, batch_size=32, epochs=2, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
