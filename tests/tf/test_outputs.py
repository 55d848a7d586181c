"""What `fit` leaves behind with a chief, a worker and an evaluator: each file once, all the same model."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry

TRAINING = words("--dataset digits --optimizer adam --batch-size 32 --epochs 8 --steps-per-epoch 6 --decay")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Iterator[Gang]:
    places = {
        "--checkpoint-dir": "checkpoints",
        "--export-dir": "exported",
        "--weights-dir": "weights",
        "--tensorboard-dir": "board",
        "--csv": "metrics.csv",
    }
    options = [word for option, name in places.items() for word in (option, str(folder / name))]
    training = worker_entry(*TRAINING, "--verify", "--early-stopping", "2", *options)
    with Gang(folder, training, jobs={"chief": 1, "worker": 1}, evaluator=True) as gang:
        assert set(gang.wait().values()) == {0}, gang.tails()
        yield gang


def test_every_task_reports_the_same_end(trained: Gang) -> None:
    chief, worker = trained["chief/0"].result, trained["worker/0"].result
    assert chief["digest"] == worker["digest"]
    assert chief["loss"] == worker["loss"]
    assert chief["dataset"] == "digits"
    assert chief["test_accuracy"] > 0.6
    for name in ("chief/0", "worker/0"):
        task = trained[name]
        assert len(task.records("ready")) == 1
        progress = task.records("progress")
        assert (progress[0]["step"], progress[-1]["step"]) == (1, chief["steps"])
        assert len(progress) <= chief["seconds"] + 3
        assert all(record["loss"] > 0 for record in progress)


def test_the_evaluator_measured_the_last_checkpoint(trained: Gang) -> None:
    chief, seen = trained["chief/0"].result, trained["evaluator/0"].result
    assert (seen["digest"], seen["steps"]) == (chief["digest"], chief["steps"])
    assert seen["test_accuracy"] == pytest.approx(chief["test_accuracy"], abs=1e-6)


def test_the_rate_falls_as_the_tutorials_and_is_printed(trained: Gang) -> None:
    rates = re.findall(r"Learning rate for epoch (\d+) is (\S+)", trained["chief/0"].text)
    assert rates[:8] == [(str(n + 1), ("0.001", "0.0001", "1e-05")[(n >= 3) + (n >= 7)]) for n in range(8)]


@pytest.mark.usefixtures("trained")
def test_one_writer_for_each_file(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == [str(n) for n in range(8)]
    assert len(list((folder / "board").rglob("events.out.tfevents.*"))) == 1
    assert {path.suffix for path in (folder / "weights").glob("epoch-8.*")} == {
        ".index",
        ".data-00000-of-00001",
    }
    assert not list(folder.rglob("workertemp_*"))
    assert (folder / "exported" / "saved_model.pb").is_file()
    # Checkpoints are each task's own, so that any machine may be lost.
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["chief-0", "worker-0"]
    assert len(list((folder / "checkpoints" / "chief-0").glob("step-*.index"))) == 2


def test_all_that_was_saved_scores_as_the_trained_model(trained: Gang) -> None:
    for name in ("chief/0", "worker/0"):
        assert re.findall(r"verified: (.*?): ", trained[name].text) == [
            "the latest checkpoint, without a strategy",
            "the latest checkpoint, in the strategy's scope",
            "the SavedModel, without a strategy",
            "the SavedModel, in the strategy's scope",
        ]
