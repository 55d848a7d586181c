"""Missing data is fetched, or causes one error."""

import json
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk
from tests.tf import mnist_files
from tests.tf.gang import Gang, words, worker_entry
from tests.training import training_python

NO_NETWORK = {"https_proxy": "http://127.0.0.1:1", "no_proxy": ""}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "through the proxy 127.0.0.1:1 cannot be reached: Connection refused"),
        ("--dataset cifar10_corrupted --validate", "and --download is not set"),
    ],
)
def test_missing_data_is_one_error_with_suggestions(tmp_path: Path, options: str, why: str) -> None:
    asked = [*words(options), "--data-dir", str(tmp_path / "empty")]
    with Gang(tmp_path / "gang", worker_entry(*asked), env=NO_NETWORK) as gang:
        assert gang.wait() == {"alone": 1}
        (error,) = gang["alone"].records("error")
        assert error["message"].endswith(" is not on this machine")
        assert why in error["why"]
        assert all(way in error["hint"] for way in ("-- --dataset digits`", "under [data]", "--data-dir"))
        assert ("--download" in error["hint"]) is ("download is not set" in why)


def test_missing_data_is_fetched_once_per_disk_before_training(tmp_path: Path) -> None:
    """From a local server, with tensorflow-datasets' own code; two tasks share the disk."""
    files = tmp_path / "files"
    mnist_files.make(files)
    asked = ["--data-dir", str(tmp_path / "data"), "--validate"]
    with mnist_files.served(files) as server:
        program = ["-m", "tests.tf.small_mnist", str(files), server.url, *asked]
        with Gang(tmp_path / "gang", program, jobs={"worker": 2}) as gang:
            both = gang.tasks.values()
            gang.until("one fetches, and one waits", lambda: all(task.records("data") for task in both))
            server.give.set()
            results = gang.finish()
            steps = [gang[f"worker/{number}"].records("data") for number in (0, 1)]
    assert {result["dataset"] for result in results} == {"mnist"}
    assert sorted(server.fetched) == sorted(f"/{path.name}" for path in files.iterdir()), "each once"
    first, other = sorted((task[0] for task in steps), key=lambda record: str(record["step"]))
    assert (first["step"], first["name"]) == ("downloads", "mnist")
    assert first["total"] > 300_000
    assert other["step"] == "waits for another process that is downloading it to this disk"


# --- A data set that was sent ---

LIMIT = 240.0

# A typical script, without any reference to orchestrate.
SCRIPT = """
import tensorflow as tf
import tensorflow_datasets as tfds

strategy = tf.distribute.MultiWorkerMirroredStrategy()
data, info = tfds.load("mnist", split="train", as_supervised=True, with_info=True)
data = data.map(lambda image, label: (tf.cast(image, tf.float32) / 255.0, label)).batch(32)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer="sgd")
model.fit(data, epochs=1, verbose=2)
train = info.splits["train"]
print("TRAINED on", train.num_examples, "examples in", train.num_shards, "files")
"""


@pytest.mark.soak
def test_an_unchanged_script_trains_on_a_sent_data_set(desk: Desk, prepared: Path) -> None:
    job = f'[data]\nsets = ["mnist"]\ntfds_dir = "{prepared}"'
    desk.write_hosts(desk.cluster.hosts, job=job, python=training_python())
    cache = str(desk.folder / "cache")
    script = desk.script("train.py", SCRIPT)
    viewer = desk.launch("--", script, XDG_CACHE_HOME=cache).ended(limit=LIMIT)
    assert viewer.stdout.count("TRAINED on 1437 examples in 1 files") == 2, viewer.stdout

    # The bundled program also finds it, and nothing is sent again.
    again = desk.launch("--json", "--", "--epochs", "1", "--batch-size", "32", XDG_CACHE_HOME=cache).ended(
        limit=LIMIT
    )
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert [event["reused"] for event in events if event["event"] == "DataPlaced"] == [True, True]
    results = [
        event["data"] for event in events if event["event"] == "TaskReported" and event["kind"] == "result"
    ]
    assert [result["note"] for result in results] == ["tensorflow-datasets mnist/3.0.1"] * 2
    assert len({result["digest"] for result in results}) == 1
