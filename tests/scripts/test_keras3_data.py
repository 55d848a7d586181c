"""`fit` of Keras 3 on two tasks gives the same result as in one process for each kind of data."""

import os
import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk
from tests.training import training_python

PROGRAM = Path(__file__).parent / "programs" / "keras3_data.py"
PATIENCE = 280.0


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_two_tasks_train_like_one_process(tmp_path: Path) -> None:
    """No batch is lost, and no array of the program is modified."""
    alone = subprocess.Popen(
        [training_python(), PROGRAM],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with alone, Cluster(2, python=training_python()) as cluster, closing(Desk(cluster, tmp_path)) as desk:
        desk.write_hosts(cluster.hosts)
        desk.script(PROGRAM.name, PROGRAM.read_text())
        desk.launch("--", PROGRAM.name).ended(limit=PATIENCE)
        logs = sorted((desk.run_folder() / "logs" / "1").glob("*.log"))
        several = [re.findall(r"^DATA .*", log.read_text(), re.MULTILINE) for log in logs]
        out, err = alone.communicate()
    lines = re.findall(r"^DATA .*", out, re.MULTILINE)
    assert len(lines) == 26, err
    assert several == [lines, lines]
