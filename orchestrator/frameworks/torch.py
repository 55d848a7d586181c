"""PyTorch: the variables of `init_method="env://"` for a task per GPU, and torchrun's for a task per host."""

from __future__ import annotations

import re

from orchestrator.frameworks.framework import Framework, Standing

_PROBE = """
if "torch" in sys.modules:
    import torch, torch.distributed as group
    there = group.is_available()
    nccl = there and torch.version.cuda and group.is_nccl_available()
    parts = ["CUDA " + torch.version.cuda] if torch.version.cuda else []
    parts += ["NCCL " + ".".join(map(str, torch.cuda.nccl.version()))] if nccl else []
    parts += ["gloo"] if there and group.is_gloo_available() else []
    write({"gpus": torch.cuda.device_count() if gpus else None, "built": ", ".join(parts) or "no backend"})
"""


def _variables(place: Standing) -> dict[str, str]:
    address, port = place.peers[0]
    processes = "auto" if place.devices is None else str(max(1, len(place.devices)))
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.host_rank),
        # Options of torchrun that its command line does not have; it replaces the variables above.
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(port),
        "PET_NNODES": str(place.hosts),
        "PET_NODE_RANK": str(place.host_rank),
        "PET_NPROC_PER_NODE": processes,
    }


TORCH = Framework(
    "PyTorch",
    imports=frozenset(
        {"torch", "torchvision", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "transformers"}
    ),
    package="torch",
    packages={"torch": "torch", "keras": "keras"},
    probe=_PROBE,
    validation=("worker_entry.alone", "torch"),
    spreads=re.compile(r"torch\.distributed|DistributedDataParallel|lightning|accelerate|deepspeed"),
    starts=re.compile(r"(?:^|[/\s])torchrun(?:\s|$)|\btorch\.distributed\.(?:run|launch)\b"),
    variables=_variables,
    shows_all=True,
)
