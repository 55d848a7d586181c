"""One task alone: in the check of a node, with the job's data, and in a cluster that cannot form."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry

JOB = words("--optimizer adam --batch-size 32 --epochs 100 --strategy multi-worker --validate")


def validate(folder: Path, *options: str, env: dict[str, str] | None = None) -> Gang:
    """One of two tasks; its peer never starts, and is not waited for."""
    return Gang(folder, worker_entry(*JOB, *options), jobs={"worker": 2}, start=["worker/1"], env=env)


def test_it_trains_alone_with_the_jobs_data(tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    with validate(tmp_path / "gang", "--dataset", "digits", "--checkpoint-dir", str(kept)) as gang:
        (result,) = gang.finish()
        assert (result["dataset"], result["steps"]) == ("digits", 15)
        assert result["note"] == "scikit-learn's handwritten digits"
        assert result["steps_per_second"] > 0
        assert result["loss"] > 0
        assert not kept.exists(), "a validation wrote into the job's folder"


def test_data_that_the_job_names_must_be_there(tmp_path: Path) -> None:
    with validate(tmp_path / "gang", "--no-download", "--data-dir", str(tmp_path / "nothing")) as gang:
        assert gang.wait() == {"worker/1": 1}
        (error,) = gang["worker/1"].records("error")
        assert error["message"] == "the data set mnist is not on this machine"
        assert "--data-dir" in error["hint"]


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
