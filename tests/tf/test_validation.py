"""The check of one node: the job's model alone, with the job's data."""

from __future__ import annotations

from pathlib import Path

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
