"""PyTorch, JAX, and Keras 3 on several tasks: equal weights, kills and restarts, and the first failure."""

import os
import re
import signal

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, until

LIMIT = 200.0
EXAMPLES = [
    ("torch_ddp.py", "torch_desk", "PyTorch: the program imports torch"),
    ("jax_mnist.py", "jax_desk", "JAX: the program imports jax"),
    ("keras_jax.py", "jax_desk", "JAX: KERAS_BACKEND is jax"),
]


def weights(desk: Desk, attempt: str) -> list[str]:
    """Return the digest that each task prints at its end, by rank."""
    logs = [path.read_text() for path in sorted((desk.run_folder() / "logs" / attempt).glob("worker-?.log"))]
    ends = [re.search(rf"rank (\d) of {len(logs)}: weights (\w{{16}})$", log, re.MULTILINE) for log in logs]
    assert [match and match[1] for match in ends] == [str(rank) for rank in range(len(logs))], logs
    return [match[2] for match in ends if match]


@pytest.mark.parametrize(
    ("fixture", "example"), [("torch_desk", "torch_ddp.py"), ("jax_desk", "jax_mnist.py")]
)
def test_all_tasks_end_with_equal_weights(fixture: str, example: str, request: pytest.FixtureRequest) -> None:
    desk: Desk = request.getfixturevalue(fixture)
    desk.write_hosts(desk.cluster.hosts[:2])
    desk.launch("--", desk.example(example), "--epochs", "2").ended(limit=LIMIT)
    zero, one = weights(desk, "1")
    assert zero == one


@pytest.mark.soak
@pytest.mark.parametrize(("example", "fixture", "note"), EXAMPLES)
def test_a_killed_training_continues_and_all_tasks_end_with_equal_weights(
    example: str, fixture: str, note: str, request: pytest.FixtureRequest
) -> None:
    desk: Desk = request.getfixturevalue(fixture)
    epochs = "4" if example.startswith("keras") else "12"  # time to be killed after 1
    command = ("--", desk.example(example), "--epochs", epochs)
    viewer = desk.launch(*command, fast=False).ended(limit=LIMIT)
    assert f"{note}; `framework` under [job] changes it" in viewer.stderr
    assert not re.search(r"tensorflow|TF_", viewer.stderr.replace('"tensorflow"', ""), re.IGNORECASE)
    assert not desk.named("PeersReported")
    first = weights(desk, "1")
    (expected,) = set(first)
    assert len(first) == 4
    whole = desk.run_id()

    desk.timings = {"pauses": [0.05]}
    viewer = desk.launch("--max-restarts", "1", *command)
    run = until("another run begins", lambda: desk.run_id() if desk.run_id() != whole else "")
    saved = desk.node_work(desk.cluster.hosts[0], run) / "checkpoints"
    until("the first epoch is saved", lambda: any(saved.glob("*")), LIMIT)
    os.kill(desk.task_pids(run, "worker/2")[0], signal.SIGKILL)
    assert viewer.wait(LIMIT) == ExitStatus.OK, viewer.stdout + viewer.stderr
    assert "worker/2 on rehearsal-03 was killed by SIGKILL" in viewer.stderr, viewer.stderr
    (found,) = set(weights(desk, "2"))
    if example == "jax_mnist.py":  # DistributedDataParallel sums in a different order in its first step
        assert found == expected
    again = (desk.run_folder() / "logs" / "2" / "worker-1.log").read_text()
    assert not re.search(r"[Ee]poch 1\b", again)
    desk.nothing_is_left(run)


TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
for step in range(10**6):
    if step == 20 and dist.get_rank() == RAISES:
        raise ValueError("record 17 has no label")
    model(torch.ones(4, 8)).sum().backward()
"""
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
        pytest.param("torch_desk", TORCH, 1, ("--", "torchrun"), marks=pytest.mark.soak),
        ("jax_desk", JAX, 0, ("--",)),  # its process is the coordinator; tests/slurm covers another one
    ],
    ids=["torch", "torchrun", "jax"],
)
def test_the_first_task_to_raise_is_named(
    fixture: str, program: str, raises: int, command: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    desk: Desk = request.getfixturevalue(fixture)
    desk.write_hosts(desk.cluster.hosts, job="[defaults]\ndevices = []\n")
    script = desk.script("train.py", program.replace("RAISES", str(raises)))
    viewer = desk.launch(*command, script).ended(ExitStatus.RUN_FAILED, limit=LIMIT)
    cause = f"error: worker/{raises} on rehearsal-0{raises + 1} "
    (line,) = (line for line in viewer.stderr.split("\n") if line.startswith("error: worker/"))
    assert line.startswith(cause), viewer.stderr
    assert line.endswith("ValueError: record 17 has no label"), viewer.stderr
