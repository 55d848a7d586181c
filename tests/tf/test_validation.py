"""The check of one node: the job's model alone, with the job's data or what there is instead."""

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


def test_without_the_jobs_data_and_scikit_learn_it_takes_synthetic_ones_and_says_so(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "sklearn"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('hidden by a test', name='sklearn')\n")
    env = {"PYTHONPATH": str(hidden.parent)}
    with validate(tmp_path / "gang", "--data-dir", str(tmp_path / "nothing"), env=env) as gang:
        (result,) = gang.finish()
        assert (result["dataset"], result["steps"]) == ("synthetic", 15)
        assert "instead of mnist: the data set mnist is not on this machine" in result["note"]
        assert "the data set digits needs scikit-learn" in result["note"]
