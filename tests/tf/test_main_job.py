"""A complete `launch` with real training on real SSH servers."""

import os
import re
import signal
from typing import Any

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk
from tests.tf.gang import words

LIMIT = 150.0  # seconds; four tasks share the available cores


def results(desk: Desk) -> list[dict[str, Any]]:
    return [event["data"] for event in desk.named("TaskReported") if event["kind"] == "result"]


@pytest.mark.soak
def test_the_tutorials_parameters_with_all_phases(desk: Desk) -> None:
    """Global batch 64 x 2, SGD 0.001, 3 epochs of 5 steps; preflight and validation included."""
    desk.launch("--", *words("--dataset digits --epochs 3 --steps-per-epoch 5"), fast=False).ended(
        limit=LIMIT
    )
    found = results(desk)
    assert len(found) == 2
    assert len({result["digest"] for result in found}) == 1
    assert {result["steps"] for result in found} == {15}
    # The displayed loss is that of the global batch (2.3 for guessing), not a sum over tasks.
    losses = [event["loss"] for event in desk.named("TaskProgressed") if event["loss"] is not None]
    assert losses  # other events hold the rest of Keras' output
    assert all(1.5 < loss < 3.0 for loss in losses)
    desk.logs_are_identical(desk.run_id())
    validated = desk.named("HostValidated")
    assert {event["host"] for event in validated} == {host.name for host in desk.cluster.hosts}
    assert all(event["steps_per_second"] > 0 and event["dataset"] for event in validated)
    pairs = desk.named("PairReported")  # for the report; the terminal shows reachability per host
    assert [pair["tcp"] for pair in pairs] == [True] * 4
    reached = [event for event in desk.named("CheckReported") if event["check"] == "reach"]
    assert {event["level"] for event in reached} == {"ok"}
    assert len({event["host"] for event in reached}) == 2
    # The built-in validation has no TF_CONFIG, and leaves nothing behind.
    desk.nothing_is_left(desk.run_id())


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


@pytest.mark.soak
def test_a_tensorflow_task_that_ignores_term_is_stopped(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 2")
    text = (desk.project / desk.example("fit.py")).read_text()
    desk.script("main.py", re.sub(r"epochs=\d+", "epochs=100_000", text))
    viewer = desk.launch("--", "main.py")
    viewer.shows("Epoch 2/")
    viewer.signal(signal.SIGINT)
    assert viewer.wait() == ExitStatus.INTERRUPTED
    desk.nothing_is_left(desk.run_id())
