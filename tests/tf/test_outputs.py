"""Files written by `fit` with a chief and a worker: each once, all with the same model."""

from pathlib import Path

from tests.tf.gang import Gang, words, worker_entry

TRAINING = words("--dataset digits --optimizer adam --batch-size 32 --epochs 8 --steps-per-epoch 6")


def test_each_file_is_written_once_by_one_task(tmp_path: Path) -> None:
    checkpoints, exported, board = (tmp_path / name for name in ("checkpoints", "exported", "board"))
    places = {"--checkpoint-dir": checkpoints, "--export-dir": exported, "--tensorboard-dir": board}
    options = [word for option, path in places.items() for word in (option, str(path))]
    with Gang(tmp_path, worker_entry(*TRAINING, *options), jobs={"chief": 1, "worker": 1}) as gang:
        chief, worker = gang.finish()
    assert chief["digest"] == worker["digest"]
    assert chief["loss"] == worker["loss"]
    assert chief["dataset"] == "digits"
    assert chief["test_accuracy"] > 0.6
    for name in ("chief/0", "worker/0"):
        task = gang[name]
        assert len(task.records("ready")) == 1
        progress = task.records("progress")
        assert (progress[0]["step"], progress[-1]["step"]) == (1, chief["steps"])
        assert len(progress) <= chief["seconds"] + 3
        assert all(record["loss"] > 0 for record in progress)

    assert len(list(board.rglob("events.out.tfevents.*"))) == 1
    assert not list(tmp_path.rglob("workertemp_*"))
    assert (exported / "saved_model.pb").is_file()
    # Each task has its own checkpoints, so that any machine may be lost.
    assert sorted(path.name for path in checkpoints.iterdir()) == ["chief-0", "worker-0"]
    assert len(list((checkpoints / "chief-0").glob("step-*.index"))) == 2
