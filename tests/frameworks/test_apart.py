"""Programs that users copy to several hosts, where each then trains separately."""

import pytest

from tests.ssh.runs.desk import Desk

TRAIN = """
import os, socket, sys, time
import torch, torch.distributed as dist
def free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
def train(spreads=True):
    model = torch.nn.Linear(8, 1)
    model = torch.nn.parallel.DistributedDataParallel(model) if spreads else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(20):
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss: {loss.item():.4f}", flush=True)
        time.sleep(0.2)
"""
OF_TORCHRUN = TRAIN + "dist.init_process_group('gloo')\ntrain()\n"
DEFAULTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world-size", type=int, default=1)
parser.add_argument("--dist-url", default=f"tcp://127.0.0.1:{free()}")
args = parser.parse_args()
dist.init_process_group("gloo", init_method=args.dist_url, rank=args.rank, world_size=args.world_size)
train()
"""
SPAWN = """
def main(rank, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    train()
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (free(),), nprocs=2)
"""
KERAS = """
import time
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
pause = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(0.2))
model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=20, verbose=2, callbacks=[pause])
"""
OVER_DEVICES = "import keras\nkeras.distribution.set_distribution(keras.distribution.DataParallel())\n"
JAX = """
import time
import jax, jax.numpy as jnp
step = jax.value_and_grad(lambda w: jnp.mean((jnp.ones((4, 8)) @ w) ** 2))
w = jnp.ones(8)
for epoch in range(20):
    loss, grad = step(w)
    w = w - 0.01 * grad
    print(f"epoch {epoch} loss: {float(loss):.4f}", flush=True)
    time.sleep(0.2)
"""
STANDALONE = ("--", "torchrun", "--standalone")
ON_JAX = ("--env", "KERAS_BACKEND=jax", "--")

PROGRAMS = {
    "torchrun --standalone": ("torch_desk", OF_TORCHRUN, (*STANDALONE, "--nproc_per_node=2")),
    "torchrun --standalone, one process": ("torch_desk", OF_TORCHRUN, STANDALONE),
    "--rank 0 --world-size 1": ("torch_desk", TRAIN + DEFAULTS, ("--",)),
    "spawn on localhost": ("torch_desk", TRAIN + SPAWN, ("--",)),
    "no process group": ("torch_desk", TRAIN + "train(spreads=False)", ("--",)),
    "Keras on JAX without initialize": ("jax_desk", KERAS, ON_JAX),
    "DataParallel without initialize": ("jax_desk", OVER_DEVICES + KERAS, ON_JAX),
    "JAX without initialize": ("jax_desk", JAX, ("--",)),
}
IN_THE_SUITE = ("JAX without initialize",)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in IN_THE_SUITE else pytest.mark.soak) for one in PROGRAMS]
)
def test_separate_training_on_each_host_is_reported(name: str, request: pytest.FixtureRequest) -> None:
    fixture, program, command = PROGRAMS[name]
    desk: Desk = request.getfixturevalue(fixture)
    desk.write_hosts(desk.cluster.hosts[:2], job="[defaults]\ndevices = []\n")
    viewer = desk.launch(*command, desk.script("train.py", program)).ended()
    assert [event["connected"] for event in desk.named("PeersReported")] == [False], viewer.stdout
    (ended,) = desk.named("RunEnded")
    assert "worker/[0-1] run separately" in "".join(ended.get("warnings", []))
