"""Kinds of data that `fit` of Keras 3 gets: for each its steps, and the weights that it leads to."""

import os

import keras
import numpy as np
import tensorflow as tf

alone = "TF_CONFIG" not in os.environ  # Keras without a strategy is the measure
strategy = tf.distribute.MultiWorkerMirroredStrategy() if not alone else tf.distribute.get_strategy()
X = np.random.RandomState(0).rand(48, 4).astype("f")
Y = X.sum(1, keepdims=True) * 0.5
W = np.linspace(0.5, 2, 48).astype("f")


class Count(keras.callbacks.Callback):
    steps = last = 0

    def on_train_batch_end(self, batch, logs=None):
        self.last = batch + 1  # an execution may have made several steps

    def on_epoch_end(self, epoch, logs=None):
        self.steps += self.last


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        part = slice(index * 8, index * 8 + 8)
        return X[part], Y[part]


class Doubled(keras.Model):
    """A train_step of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = 2 * self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
        return {"loss": loss}


def sequential(loss="mse", clipped=(), **compiled):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(**dict(clipped)), loss, **compiled)
    return model


def batches(times=1, weights=False):
    for at in range(0, 48 * times, 8):
        part = slice(at % 48, at % 48 + 8)
        yield (X[part], Y[part], W[part]) if weights else (X[part], Y[part])


def shared():
    one = batches(2)
    shapes = ((None, 4), (None, 1)) if alone else None  # alone, Keras wants them
    return tf.data.Dataset.from_generator(lambda: one, (tf.float32, tf.float32), shapes)


def looked_up():
    numbers = tf.data.Dataset.range(6)
    return numbers.map(
        lambda at: tuple(
            tf.ensure_shape(part, (8, size))
            for part, size in zip(
                tf.numpy_function(lambda at: (X[at * 8 : at * 8 + 8], Y[at * 8 : at * 8 + 8]), [at], [tf.float32] * 2),
                (4, 1),
            )
        )
    )


def slices(spec):
    return tf.data.Dataset.from_generator(batches, output_signature=(spec, tf.TensorSpec((None, 1), tf.float32)))


def dict_inputs():
    with strategy.scope():
        a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
        out = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Concatenate()([a, b]))
        model = keras.Model({"a": a, "b": b}, out)
        model.compile("sgd", "mse")
    return model, {"x": {"a": X[:, :2], "b": X[:, 2:]}, "y": Y, "batch_size": 8, "shuffle": False}


def from_function(context):
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
    per = 8 // context.num_replicas_in_sync
    return whole.unbatch().batch(per, drop_remainder=True).shard(
        context.num_input_pipelines, context.input_pipeline_id
    )


def ragged():
    rows = tf.RaggedTensor.from_row_lengths(X.reshape(-1)[: 24 * 6], [4, 8] * 12)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Embedding(4, 1), keras.layers.GlobalAveragePooling1D()])
        model.compile("sgd", "mse")
    return model, {"x": tf.data.Dataset.from_tensor_slices((tf.cast(rows, tf.int32), Y[:24])).batch(8)}


def arrays(**more):
    return {"x": X, "y": Y, "batch_size": 8, "shuffle": False, **more}


def doubled():
    with strategy.scope():
        model = Doubled()
        model.compile("sgd", "mse")
    return model


CASES = {
    "arrays": lambda: (sequential(metrics=["mae"]), arrays()),
    "uneven": lambda: (sequential(), {**arrays(), "x": X[:44], "y": Y[:44]}),
    "sample_weight": lambda: (sequential(), arrays(sample_weight=W)),
    "validation_data": lambda: (sequential(), arrays(validation_data=(X, Y))),
    "validation_split": lambda: (sequential(), arrays(validation_split=0.5)),
    "dict": dict_inputs,
    "generator": lambda: (sequential(), {"x": batches()}),
    "generator, steps": lambda: (sequential(), {"x": batches(2), "steps_per_epoch": 6, "epochs": 2}),
    "generator, weights": lambda: (sequential(), {"x": batches(weights=True)}),
    "generator, validation": lambda: (
        sequential(),
        arrays(validation_data=batches(3), validation_steps=3, epochs=2),
    ),
    "one-shot without shapes": lambda: (sequential(), {"x": shared(), "steps_per_epoch": 6, "epochs": 2}),
    "from_generator": lambda: (sequential(), {"x": slices(tf.TensorSpec((None, 4), tf.float32))}),
    "from_generator, no size": lambda: (sequential(), {"x": slices(tf.TensorSpec((None, 4 if alone else None)))}),
    "class_weight": lambda: (sequential(), arrays(y=np.arange(48) % 2, class_weight={0: 1.0, 1: 3.0})),
    "numpy_function": lambda: (sequential(), {"x": looked_up()}),
    "PyDataset": lambda: (sequential(), {"x": Batches(), "shuffle": False}),
    "steps_per_execution": lambda: (sequential(steps_per_execution=3), arrays()),
    "tf.data": lambda: (sequential(), {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)}),
    "from_function": lambda: (
        sequential(),
        {"x": strategy.distribute_datasets_from_function(from_function), "steps_per_epoch": 6},
    ),
    "clipnorm": lambda: (sequential(clipped={"clipnorm": 0.2}), arrays()),
    "global_clipnorm": lambda: (sequential(clipped={"global_clipnorm": 0.2}), arrays()),
    "clipvalue": lambda: (sequential(clipped={"clipvalue": 0.1}), arrays()),
    "a loss that is one number": lambda: (sequential(lambda y, p: keras.ops.mean((y - p) ** 2)), arrays()),
    "train_step": lambda: (doubled(), arrays()),
    "ragged": ragged,
}

for name, make in CASES.items():
    count = Count()
    keras.utils.set_random_seed(1)
    model, data = make()
    model.fit(verbose=0, callbacks=[count], **data)
    weights = " ".join(f"{value:.4f}" for one in model.trainable_weights for value in np.ravel(one))
    print(f"DATA {name}: {count.steps} steps, {weights}", flush=True)
assert (X == np.random.RandomState(0).rand(48, 4).astype("f")).all()
assert (Y == X.sum(1, keepdims=True) * 0.5).all()

# Gradients that overflow on one worker alone: both skip that step.
keras.config.set_dtype_policy("mixed_float16")
model = sequential()
overflows = X * np.where(np.arange(48) % 8 < 4, 1, 1e6)[:, None].astype("f")
model.fit(overflows, Y, batch_size=8, shuffle=False, verbose=0)
print(f"DATA overflow: {keras.ops.convert_to_numpy(model.optimizer.dynamic_scale):.0f}", flush=True)
