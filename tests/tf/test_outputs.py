"""What `fit` leaves behind with a chief and a worker: each file once, all the same model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry

TRAINING = words("--dataset digits --optimizer adam --batch-size 32 --epochs 8 --steps-per-epoch 6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Iterator[Gang]:
    places = {
        "--checkpoint-dir": "checkpoints",
        "--export-dir": "exported",
        "--tensorboard-dir": "board",
    }
    options = [word for option, name in places.items() for word in (option, str(folder / name))]
    training = worker_entry(*TRAINING, *options)
    with Gang(folder, training, jobs={"chief": 1, "worker": 1}) as gang:
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


@pytest.mark.usefixtures("trained")
def test_one_writer_for_each_file(folder: Path) -> None:
    assert len(list((folder / "board").rglob("events.out.tfevents.*"))) == 1
    assert not list(folder.rglob("workertemp_*"))
    assert (folder / "exported" / "saved_model.pb").is_file()
    # Checkpoints are each task's own, so that any machine may be lost.
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["chief-0", "worker-0"]
    assert len(list((folder / "checkpoints" / "chief-0").glob("step-*.index"))) == 2
