"""Launchers, trainers, and contracts, each with a program from its documentation, on two hosts."""

import re

import pytest

from tests.ssh.runs.desk import Desk

DDP = """
import gc, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
total = model.module.weight.sum().item()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total:.6f}", flush=True)
del model, optimizer
gc.collect()  # otherwise gloo's threads abort Python's exit in one of six runs on a busy machine
dist.destroy_process_group()
"""
# Programs that cannot release gloo's threads skip Python's exit, which these may abort.
END = """
import os
os._exit(0)
"""
FSDP = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for step in range(5):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
total = model[0].weight.full_tensor().sum().item()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total:.6f}", flush=True)
dist.destroy_process_group()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
total = accelerator.unwrap_model(model).weight.sum().item()
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {total:.6f}", flush=True)
accelerator.end_training()
"""
LIGHTNING = """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, at):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
model = Model()
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", max_epochs=1, logger=False
)
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8))
total = model.layer.weight.sum().item()
print(f"rank {trainer.global_rank} of {trainer.world_size}: {total:.6f}", flush=True)
"""
TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
torch.manual_seed(7)
config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": at % 2} for at in range(64)]
args = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=2, use_cpu=True, report_to=[])
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train()
total = sum(p.sum().item() for p in model.parameters())
print(f"rank {args.process_index} of {args.world_size}: {total:.4f}", flush=True)
"""
DTENSOR = """
import tensorflow as tf
from tensorflow.experimental import dtensor
dtensor.initialize_accelerator_system("CPU")
mesh = dtensor.create_distributed_mesh([("batch", dtensor.num_global_devices("CPU"))], device_type="CPU")
layout = dtensor.Layout.replicated(mesh, rank=2)
tf.random.set_seed(7)
w = dtensor.DVariable(dtensor.call_with_layout(tf.ones, layout, shape=(8, 1)))
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss
for number in range(3):
    local = tf.random.stateless_normal((4, 8), seed=(number, dtensor.client_id()))
    x = dtensor.pack([local], dtensor.Layout.batch_sharded(mesh, "batch", rank=2))
    loss = step(x)
total = float(tf.reduce_sum(dtensor.unpack(w.read_value())[0]))
print(f"rank {dtensor.client_id()} of {dtensor.num_clients()}: {total:.6f}", flush=True)
"""
TUNER = """
import os
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras, keras_tuner, numpy as np
def build(hp):
    model = keras.Sequential([keras.layers.Dense(hp.Int("units", 2, 8, step=2)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(hp.Choice("rate", [0.1, 0.01])), "mse")
    return model
tuner = keras_tuner.RandomSearch(build, objective="val_loss", max_trials=4, directory="search")
x, y = np.ones((64, 4)), np.ones((64, 1))
tuner.search(x, y, validation_data=(x, y), epochs=1, verbose=0)
best, name = tuner.get_best_hyperparameters()[0], os.environ["KERASTUNER_TUNER_ID"]
rank = 0 if name == "chief" else int(name[5:]) + 1
print(f"rank {rank} of 2: {best.get('rate') + best.get('units')}", flush=True)
"""
KUBEFLOW = """
import os
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
jax.distributed.initialize(
    coordinator_address=f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}",
    num_processes=int(os.environ["NUM_PROCESSES"]),
    process_id=int(os.environ["PROCESS_ID"]),
)
total = multihost_utils.process_allgather(jnp.ones(1) * (jax.process_index() + 1)).sum()
print(f"rank {jax.process_index()} of {jax.process_count()}: {float(total):.6f}", flush=True)
"""
# From every rank: a surviving rank is restarted while its peer may already connect to its old address
# ("connectFullMesh failed").
HICCUP = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise RuntimeError("a hiccup")
"""
ELASTIC = (
    "torchrun --nnodes=1:2 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT --max-restarts=1"
)
PROGRAMS = {
    "torchrun, two processes a host": ("torch", DDP, 4, ("--", "torchrun", "--nproc_per_node=2", "train.py")),
    "torchrun that restarts": ("torch", HICCUP + DDP, 2, ("--", "torchrun", "--max-restarts=1", "train.py")),
    "elastic torchrun in a shell": ("torch", HICCUP + DDP, 2, ("--", "bash", "-c", f"{ELASTIC} train.py")),
    "fully_shard": ("torch", FSDP + END, 2, ("--", "train.py")),
    "accelerate launch": ("torch", ACCELERATE + END, 2, ("--", "accelerate", "launch", "train.py")),
    "Lightning": ("torch", LIGHTNING + END, 2, ("--", "train.py")),
    "Trainer of transformers": ("torch", TRAINER + END, 2, ("--", "torchrun", "train.py")),
    "DTensor": ("tf", DTENSOR, 2, ("--", "train.py")),
    "Keras Tuner": ("jax", TUNER, 2, ("--", "train.py")),
    "a JAXJob of Kubeflow": ("jax", KUBEFLOW, 2, ("--", "train.py")),
}


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.soak) for one in PROGRAMS])
def test_all_processes_train_together_and_end_with_equal_weights(
    name: str, request: pytest.FixtureRequest
) -> None:
    framework, program, size, command = PROGRAMS[name]
    desk: Desk = request.getfixturevalue(f"{framework}_desk")
    desk.write_hosts(desk.cluster.hosts[:2], job="[defaults]\ndevices = []\n")
    desk.script("train.py", program)
    viewer = desk.launch(*command).ended()
    ends = re.findall(r"rank (\d) of (\d): (-?[\d.]+)", viewer.stdout)
    assert sorted(rank for rank, _, _ in ends) == [str(rank) for rank in range(size)], viewer.stdout
    assert {(of, weights) for _, of, weights in ends} == {(str(size), ends[0][2])}, viewer.stdout
    assert not desk.named("PeersReported")
