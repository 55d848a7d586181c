"""Data parallelism with JAX, one process per task; it continues from its checkpoint.

orchestrate launch -- examples/jax_mnist.py
"""

import argparse
import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CHECKPOINT, NEW = Path("checkpoints/jax.npz"), Path("checkpoints/new.npz")
STEPS, BATCH_PER_TASK = 20, 32

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=3)
epochs = options.parse_args().epochs

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # CPUs need it; GPUs have NCCL
jax.distributed.initialize()
rank, size = jax.process_index(), jax.process_count()
spread = NamedSharding(Mesh(jax.devices(), "batch"), PartitionSpec("batch"))

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype="float32")
images, labels = table[:, :-1] / 16, table[:, -1].astype("int32")


def loss_of(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ params["hidden"] + params["bias"])
    scores = jax.nn.log_softmax(hidden @ params["out"])
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


@jax.jit
def train_step(params: dict[str, jax.Array], *batch: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    loss, slopes = jax.value_and_grad(loss_of)(params, *batch)
    return loss, jax.tree.map(lambda value, slope: value - 0.3 * slope, params, slopes)


# The first process reads its checkpoint, on whichever host it is now, and sends it to the others.
draw = np.random.default_rng(42).normal
state = {"hidden": draw(0, 0.1, (64, 128)), "bias": np.zeros(128), "out": draw(0, 0.1, (128, 10))}
state = {"epoch": 0, "params": {name: value.astype("float32") for name, value in state.items()}}
if rank == 0 and CHECKPOINT.exists():
    saved = dict(np.load(CHECKPOINT))
    state = {"epoch": int(saved.pop("epoch")), "params": saved}
state = multihost_utils.broadcast_one_to_all(state)
params = state["params"]

for epoch in range(int(state["epoch"]) + 1, epochs + 1):
    order = np.random.default_rng(epoch).permutation(len(labels))
    for step in range(STEPS):
        mine = order[(np.arange(BATCH_PER_TASK) + (step * size + rank) * BATCH_PER_TASK) % len(labels)]
        batch = [jax.make_array_from_process_local_data(spread, part[mine]) for part in (images, labels)]
        loss, params = train_step(params, *batch)
    print(f"epoch {epoch}: loss {float(loss):.4f}")
    if rank == 0:
        CHECKPOINT.parent.mkdir(exist_ok=True)
        np.savez(NEW, epoch=epoch, **jax.tree.map(np.asarray, params))
        NEW.replace(CHECKPOINT)

weights = b"".join(np.asarray(value).tobytes() for value in jax.tree.leaves(params))
print(f"rank {rank} of {size}: weights {hashlib.sha256(weights).hexdigest()[:16]}")
