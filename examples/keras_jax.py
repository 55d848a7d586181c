"""The model of fit.py in Keras 3 on JAX, one process per task; it continues from its checkpoint.

orchestrate launch -- examples/keras_jax.py
"""

import argparse
import hashlib
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from keras import layers

CHECKPOINT, NEW = Path("checkpoints/keras.npz"), Path("checkpoints/new.npz")
STEPS, BATCH_PER_TASK = 10, 64

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=3)
epochs = options.parse_args().epochs

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # CPUs need it; GPUs have NCCL
keras.distribution.initialize()
rank, size = jax.process_index(), jax.process_count()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
images, labels = table[:, :-1].reshape(-1, 8, 8, 1).astype("float32") / 16, table[:, -1]
images = np.pad(images.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2), (0, 0)))

keras.utils.set_random_seed(42)
shape = [keras.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()]
model = keras.Sequential([*shape, layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10)])
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

# The first process reads its checkpoint, on whichever host it is now, and sends it to the others.
variables = [*model.variables, *optimizer.variables]
state = {str(place): np.asarray(one.value) for place, one in enumerate(variables)} | {"epoch": 0}
if rank == 0 and CHECKPOINT.exists():
    state = dict(np.load(CHECKPOINT))
state = multihost_utils.broadcast_one_to_all(state)
for place, one in enumerate(variables):
    one.assign(state[str(place)])


class Save(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002 - Keras' signature
        if rank == 0:
            CHECKPOINT.parent.mkdir(exist_ok=True)
            values = {str(place): np.asarray(one.value) for place, one in enumerate(variables)}
            np.savez(NEW, epoch=epoch + 1, **values)
            NEW.replace(CHECKPOINT)


mine = np.random.default_rng(42).integers(len(labels), size=(STEPS, size, BATCH_PER_TASK))[:, rank].ravel()
given = {"batch_size": BATCH_PER_TASK, "shuffle": False, "verbose": 2, "callbacks": [Save()]}
model.fit(images[mine], labels[mine], epochs=epochs, initial_epoch=int(state["epoch"]), **given)

digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()[:16]
print(f"rank {rank} of {size}: weights {digest}")
