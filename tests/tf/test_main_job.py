"""A complete `launch` with real training on real SSH servers."""

import os
import re
import signal

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk


def test_the_death_of_one_task_ends_an_unchanged_tutorial_script(desk: Desk) -> None:
    """The script does not refer to us; the death of a peer must not leave the others waiting."""
    text = (desk.project / desk.example("fit.py")).read_text()
    assert "orchestrat" not in text.replace("orchestrate launch", "")
    desk.script("main.py", re.sub(r"epochs=\d+", "epochs=100_000", text))
    viewer, run = desk.begin("--", "python", "main.py")
    viewer.shows("Epoch 2/")
    (victim,) = desk.task_pids(run, "worker/1")
    os.kill(victim, signal.SIGKILL)
    assert viewer.wait() == ExitStatus.RUN_FAILED
    (ended,) = desk.named("RunEnded")
    assert ended["cause_task"] == "worker/1"
    assert "SIGKILL" in ended["cause"]
    # failure_grace is 2 s; TensorFlow itself tolerates a silent peer for 8 to 10 s.
    assert desk.ended_after("worker/1", run) < 8.0
    desk.nothing_is_left(run)
