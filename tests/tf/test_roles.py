"""A program for each role: a coordinator, the servers beside it, and Keras' evaluator of its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk

MODEL = """
import os, numpy as np, tensorflow as tf
folder, epochs = os.environ["MODEL_DIR"], 4
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)

def build():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model

def data(*_):
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)
"""
COORDINATOR = """
from model import *
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
with strategy.scope():
    model = build()
saved = tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "ckpt-{epoch}"), save_weights_only=True)
creator = tf.keras.utils.experimental.DatasetCreator(data)
model.fit(creator, epochs=epochs, steps_per_epoch=8, callbacks=[saved])
"""
SERVER = """
import sys
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
print("serves", *sys.argv[1:], flush=True)
tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
"""
EVALUATOR = """
import sys
from model import *
model = build()
tf.keras.experimental.SidecarEvaluator(
    model, data().take(4), folder, max_evaluations=epochs if "--once" in sys.argv else None
).start()
print("evaluated the last one" if model.optimizer.iterations.numpy() == 8 * epochs else "another one")
"""
JOB = """
[role.worker]
command = "serve.py"
[role.ps]
command = ["serve.py"]
args = "--parameters"
[role.evaluator]
command = "evaluate.py --once"
"""


@pytest.mark.soak
def test_an_evaluator_goes_on_until_the_last_checkpoint(four: Desk, tmp_path: Path) -> None:
    four.write_hosts(four.cluster.hosts, job=JOB)
    four.give_roles("chief", "worker", "ps", "evaluator")
    programs = {"model.py": MODEL, "train.py": COORDINATOR, "serve.py": SERVER, "evaluate.py": EVALUATOR}
    for name, text in programs.items():
        four.script(name, text)
    viewer = four.launch("--env", f"MODEL_DIR={tmp_path / 'models'}", "--", "train.py")
    assert viewer.wait(200) == ExitStatus.OK, viewer.stderr
    run = four.run_id()
    logs = {path.stem: path.read_text() for path in (four.run_folder(run) / "logs").rglob("*.log")}
    assert "serves --parameters" in logs["ps-0"]
    assert "serves" in logs["worker-0"]
    assert "evaluated the last one" in logs["evaluator-0"]
    stopped = {event["task"]: event["stopped"] for event in four.named("TaskExited", run)}
    assert stopped == {"chief/0": False, "worker/0": True, "ps/0": True, "evaluator/0": False}
