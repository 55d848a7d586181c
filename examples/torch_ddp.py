"""DistributedDataParallel, on CPUs or a GPU per task; it continues from its checkpoint.

orchestrate launch -- examples/torch_ddp.py
"""

import argparse
import gc
import hashlib
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT, NEW = Path("checkpoints/torch.pt"), Path("checkpoints/new.pt")
STEPS, BATCH_PER_TASK = 20, 32

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=3)
epochs = options.parse_args().epochs

gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if gpu else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype="float32")
images = torch.tensor(table[:, :-1]).reshape(-1, 1, 8, 8).to(device) / 16
labels = torch.tensor(table[:, -1]).long().to(device)

torch.manual_seed(42)  # the same initial weights, also with one task
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)

# The first task reads its checkpoint, on whichever host it is now, and sends it to the others.
saved = [torch.load(CHECKPOINT, map_location="cpu") if rank == 0 and CHECKPOINT.exists() else None]
dist.broadcast_object_list(saved)
done = 0
if saved[0]:
    model.load_state_dict(saved[0]["model"])
    optimizer.load_state_dict(saved[0]["optimizer"])
    done = saved[0]["epoch"]
parallel = DistributedDataParallel(model, [device] if gpu else None)

for epoch in range(done + 1, epochs + 1):
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    for step in range(STEPS):
        mine = order[(torch.arange(BATCH_PER_TASK) + (step * size + rank) * BATCH_PER_TASK) % len(labels)]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
    if rank == 0:
        CHECKPOINT.parent.mkdir(exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, NEW)
        NEW.replace(CHECKPOINT)

weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
print(f"rank {rank} of {size}: weights {hashlib.sha256(weights).hexdigest()[:16]}")
# Objects used by gloo's threads must be freed before Python exits: otherwise PyTorch may abort the process.
del model, optimizer
gc.collect()
dist.destroy_process_group()
