"""A single task: in a node's validation, with the job's data, and in a cluster that cannot form."""

import time
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk
from tests.tf.gang import Gang, words, worker_entry

LIMIT = 150.0  # seconds
JOB = words(
    "--dataset digits --optimizer adam --batch-size 32 --epochs 100 --strategy multi-worker --validate"
)


def test_validation_trains_alone_with_the_job_s_data(tmp_path: Path) -> None:
    """Its peer never starts, and is not waited for."""
    kept = tmp_path / "checkpoints"
    job = worker_entry(*JOB, "--checkpoint-dir", str(kept))
    with Gang(tmp_path / "gang", job, jobs={"worker": 2}, start=["worker/1"]) as gang:
        (result,) = gang.finish()
        assert (result["dataset"], result["steps"]) == ("digits", 15)
        assert result["note"] == "scikit-learn's handwritten digits"
        assert result["steps_per_second"] > 0
        assert result["loss"] > 0
        assert result["test_loss"] is None, "a validation only trains"
        assert not kept.exists(), "a validation wrote into the job's folder"


def test_a_host_is_validated_once_per_framework(desk: Desk) -> None:
    """Whatever Keras they need, on any number of hosts; a program without a framework is not validated."""
    first, second = (host.name for host in desk.cluster.hosts)
    keras = "if False:\n    import keras, tensorflow\n    keras.ops.abs(0)"
    programs = {
        "legacy.py": "if False:\n    import tensorflow as tf\n    tf.keras.layers.Dense(1)",
        "keras_3.py": keras,
        "plain.py": "import os; print(os.environ['TF_CONFIG'])",
    }
    for name, text in programs.items():
        desk.script(name, text)

    def launched(*words: str) -> tuple[set[str], set[str]]:
        """Launch; return the validated hosts, and those with an earlier validation."""
        options = ("--hosts", str(desk.hosts), "--skip-preflight")
        desk.start("launch", *options, *words).ended(limit=LIMIT)
        stood = (host for event in desk.named("ValidationStood") for host in event["hosts"])
        return {event["host"] for event in desk.named("HostValidated")}, {*stood}

    assert launched("--", "plain.py") == (set(), set())
    assert launched("--", "legacy.py") == ({first, second}, set())
    assert launched("--", "keras_3.py") == (set(), {first, second})
    assert launched("--only", second, "--", "legacy.py") == (set(), {second})
    assert launched("--only", first, "--", "--dataset", "digits", "--epochs", "1") == (set(), {first})


THREE = {"worker": 3}
IMPATIENT = worker_entry(*words("--dataset digits --start-timeout 3"))


@pytest.mark.parametrize(
    "started", ["worker/0", "worker/1"], ids=["seen from the leader", "without the leader"]
)
def test_a_cluster_that_does_not_form_ends_in_time(tmp_path: Path, started: str) -> None:
    with Gang(tmp_path, IMPATIENT, jobs=THREE, start=[started]) as gang:
        at = time.monotonic()
        assert gang.wait() == {started: 1}
        assert time.monotonic() - at < 3 + 15 + 30  # the timeout, the cleanup, and a busy machine
