"""make_csv_dataset, preprocessing layers that are adapted, a functional model of named inputs."""
import pathlib

import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
strategy = tf.distribute.get_strategy()
dataset = tf.data.experimental.make_csv_dataset(
    str(HERE / "shared" / "rows.csv"), batch_size=32, label_name="label", num_epochs=None, shuffle=False
)
tf.keras.utils.set_random_seed(3)
columns = {name: tf.keras.Input((1,), name=name) for name in "abcd"}
normal = tf.keras.layers.Normalization()
normal.adapt(dataset.map(lambda f, _: tf.stack(list(f.values()), axis=1)).take(4))
features = tf.keras.layers.Concatenate()(list(columns.values()))
outputs = tf.keras.layers.Dense(1, activation="sigmoid")(tf.keras.layers.Dense(8, "relu")(normal(features)))
model = tf.keras.Model(columns, outputs)
model.compile("adam", "binary_crossentropy", metrics=["AUC"])
ready = dataset.map(lambda f, label: ({k: v[:, None] for k, v in f.items()}, label))
print("final loss %.6f" % model.fit(ready, steps_per_epoch=16, epochs=6, verbose=0).history["loss"][-1])
