"""One task raises in the middle of a training: it is named, and not those that lost it."""

from __future__ import annotations

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk

LIMIT = 150.0
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
for step in range(10**6):
    if step == 20 and dist.get_rank() == RAISES:
        raise ValueError("record 17 has no label")
    model(torch.ones(4, 8)).sum().backward()
"""
# PyTorch 1.13 does not know its own default under Python 3.11; later ones do.
OF_OLD = ("--env", "PET_REDIRECTS=1:1", "--env", "PET_TEE=1:1")
JAX = """
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
for step in range(10**6):
    if step == 20 and jax.process_index() == RAISES:
        raise ValueError("record 17 has no label")
    multihost_utils.process_allgather(jnp.ones(4))
"""


@pytest.mark.parametrize(
    ("fixture", "program", "raises", "command"),
    [
        ("torch_desk", TORCH, 2, ("--",)),
        ("torch_desk", TORCH, 1, (*OF_OLD, "--", "torchrun")),
        ("jax_desk", JAX, 2, ("--",)),
        ("jax_desk", JAX, 0, ("--",)),  # its process is the coordinator of all
    ],
    ids=["torch", "torchrun", "jax", "jax-0"],
)
def test_who_raised_first_is_named(
    fixture: str, program: str, raises: int, command: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    desk: Desk = request.getfixturevalue(fixture)
    desk.write_hosts(desk.cluster.hosts, job="[defaults]\ndevices = []\n")
    script = desk.script("train.py", program.replace("RAISES", str(raises)))
    viewer = desk.launch(*command, script)
    assert viewer.wait(LIMIT) == ExitStatus.RUN_FAILED, viewer.stdout + viewer.stderr
    cause = f"error: worker/{raises} on rehearsal-0{raises + 1} "
    (line,) = (line for line in viewer.stderr.split("\n") if line.startswith("error: worker/"))
    assert line.startswith(cause), viewer.stderr
    assert line.endswith("ValueError: record 17 has no label"), viewer.stderr
