"""The examples of PyTorch, JAX and Keras 3 on four tasks: equal weights, killed and continued."""

from __future__ import annotations

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
    pytest.param("keras_jax.py", "jax_desk", "JAX: KERAS_BACKEND is jax", marks=pytest.mark.soak),
]


def weights(desk: Desk, attempt: str) -> list[str]:
    """The digest that each task prints at its end, by rank."""
    logs = [path.read_text() for path in sorted((desk.run_folder() / "logs" / attempt).glob("worker-?.log"))]
    ends = [re.search(r"rank (\d) of 4: weights (\w{16})$", log, re.MULTILINE) for log in logs]
    assert [match and match[1] for match in ends] == ["0", "1", "2", "3"], logs
    return [match[2] for match in ends if match]


@pytest.mark.parametrize(("example", "fixture", "note"), EXAMPLES)
def test_a_killed_training_continues_and_all_tasks_end_with_equal_weights(
    example: str, fixture: str, note: str, request: pytest.FixtureRequest
) -> None:
    desk: Desk = request.getfixturevalue(fixture)
    command = ("--", desk.example(example), "--epochs", "3")
    viewer = desk.launch(*command, fast=False)
    assert viewer.wait(LIMIT) == ExitStatus.OK, viewer.stdout + viewer.stderr
    assert f"{note}; `framework` under [job] changes it" in viewer.stderr
    assert not re.search(r"tensorflow|TF_", viewer.stderr.replace('"tensorflow"', ""), re.IGNORECASE)
    (expected,) = set(weights(desk, "1"))
    whole = desk.run_id()

    desk.timings = {"pauses": [0.05]}
    viewer = desk.launch("--max-restarts", "1", *command)
    run = until("another run begins", lambda: desk.run_id() if desk.run_id() != whole else "")
    saved = desk.node_work(desk.cluster.hosts[0], run) / "checkpoints"
    until("the first epoch is saved", lambda: any(saved.glob("*")), LIMIT)
    os.kill(desk.task_pids(run, "worker/2")[0], signal.SIGKILL)
    assert viewer.wait(LIMIT) == ExitStatus.OK, viewer.stdout + viewer.stderr
    assert "worker/2 on rehearsal-03 was killed by SIGKILL" in viewer.stderr
    (found,) = set(weights(desk, "2"))
    if example == "jax_mnist.py":  # DistributedDataParallel, for one, sums in another order in its first step
        assert found == expected
    again = (desk.run_folder() / "logs" / "2" / "worker-1.log").read_text()
    assert not re.search(r"[Ee]poch 1\b", again)
    desk.nothing_is_left(run)
