"""One task alone: in the check of a node, with the job's data, and in a cluster that cannot form."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry

JOB = words(
    "--dataset digits --optimizer adam --batch-size 32 --epochs 100 --strategy multi-worker --validate"
)


def test_it_trains_alone_with_the_jobs_data(tmp_path: Path) -> None:
    """Its peer never starts, and is not waited for."""
    kept = tmp_path / "checkpoints"
    job = worker_entry(*JOB, "--checkpoint-dir", str(kept))
    with Gang(tmp_path / "gang", job, jobs={"worker": 2}, start=["worker/1"]) as gang:
        (result,) = gang.finish()
        assert (result["dataset"], result["steps"]) == ("digits", 15)
        assert result["note"] == "scikit-learn's handwritten digits"
        assert result["steps_per_second"] > 0
        assert result["loss"] > 0
        assert not kept.exists(), "a validation wrote into the job's folder"


THREE = {"worker": 3}
IMPATIENT = worker_entry(*words("--dataset digits --start-timeout 6"))


@pytest.mark.parametrize(
    "started", ["worker/0", "worker/1"], ids=["seen from the leader", "without the leader"]
)
def test_a_cluster_that_does_not_form_ends_in_time(tmp_path: Path, started: str) -> None:
    with Gang(tmp_path, IMPATIENT, jobs=THREE, start=[started]) as gang:
        at = time.monotonic()
        assert gang.wait() == {started: 1}
        assert time.monotonic() - at < 6 + 15 + 30  # the time-out, what comes after it, a busy machine
