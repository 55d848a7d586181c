"""From a prepared set of this machine to a training that finds its data by itself, on every host."""

import json
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk
from tests.training import training_python

LIMIT = 240.0

# As people write it: nothing in it knows of orchestrate.
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
def test_an_unchanged_script_trains_on_a_set_that_was_sent(desk: Desk, prepared: Path) -> None:
    job = f'[data]\nsets = ["mnist"]\ntfds_dir = "{prepared}"'
    desk.write_hosts(desk.cluster.hosts, job=job, python=training_python())
    cache = str(desk.folder / "cache")
    script = desk.script("train.py", SCRIPT)
    viewer = desk.launch("--", script, XDG_CACHE_HOME=cache).ended(limit=LIMIT)
    assert viewer.stdout.count("TRAINED on 1437 examples in 1 files") == 2, viewer.stdout

    # The program that comes along finds it too, and nothing is sent again.
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
