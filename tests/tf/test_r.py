"""R through reticulate: one task, two R tasks, and R with Python, which must end with equal weights."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk
from tests.training import r_python, training_python

LIMIT = 150.0  # seconds

pytestmark = pytest.mark.skipif(
    not os.environ.get("CI") and not (shutil.which("Rscript") and r_python()),
    reason="no R here: scripts/setup r",
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    assert r_python(), "CI has no R: scripts/setup r"
    with Cluster(2, python=r_python()) as cluster, closing(Desk(cluster, tmp_path)) as made:
        for name in ("mnist.R", "fit.py"):
            made.example(name)
        yield made


def ended_with(text: str) -> dict[str, tuple[str, float]]:
    """Return the weights' digest and the accuracy printed by each task."""
    found = re.findall(r"(\w+/\d): weights (\w{16}), accuracy (0\.\d+)$", text, re.MULTILINE)
    return {task: (digest, float(accuracy)) for task, digest, accuracy in found}


@pytest.mark.soak
def test_two_r_tasks_share_a_data_set_of_one_file(desk: Desk, prepared: Path) -> None:
    """The R tutorial fails with one file for two tasks ("error when consuming dataset")."""
    viewer = desk.start(
        "launch", "--hosts", str(desk.hosts), "--no-validate", "--", "mnist.R", str(prepared)
    ).ended(limit=LIMIT)
    found = ended_with(viewer.stdout)
    assert set(found) == {"worker/0", "worker/1"}
    assert len({digest for digest, _ in found.values()}) == 1
    checks = {(check["check"], check["level"], check["found"]) for check in desk.named("CheckReported")}
    assert ("r", "ok") in {(check, level) for check, level, _ in checks}, checks  # numpy is compatible too


@pytest.mark.soak
def test_an_r_task_and_a_python_task_train_one_model(desk: Desk) -> None:
    """Each in its own environment: numpy 1 for R, numpy 2 for Python."""
    r, python = desk.cluster.hosts
    head, first, second = desk.hosts.read_text().split("[[host]]")
    second = second.replace(r_python(), training_python())
    first += f'env = {{ PROGRAM = "Rscript mnist.R", RETICULATE_PYTHON = "{r_python()}" }}\n'
    second += 'env = { PROGRAM = "python fit.py" }\n'
    desk.hosts.write_text(f"{head}[[host]]{first}[[host]]{second}")
    viewer = desk.launch("--", "sh", "-c", "exec $PROGRAM").ended(limit=LIMIT)
    found = ended_with(viewer.stdout)
    assert set(found) == {"worker/0", "worker/1"}
    assert len(set(found.values())) == 1
    assert found["worker/0"][1] > 0.8
    assert [host for _, host in desk.named("RunPlanned")[0]["tasks"]] == [r.name, python.name]
