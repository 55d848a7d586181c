"""TensorFlow programs whose tasks train separate models, connected or not."""

import pytest

from tests.ssh.runs.desk import Desk

KERAS = """
import os, time
import numpy as np
import tensorflow as tf
{begins}
with {scope}:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
pause = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(0.5))
model.fit(np.random.rand(64, 4), np.random.rand(64, 1), epochs=8, verbose=2, callbacks=[pause])
"""
DTENSOR = """
import os, time
for name in [name for name in os.environ if name.startswith("DTENSOR_")]:
    del os.environ[name]
import tensorflow as tf
from tensorflow.experimental import dtensor
mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
weights = dtensor.DVariable(dtensor.call_with_layout(tf.ones, dtensor.Layout.replicated(mesh, 1), [8]))
for epoch in range(8):
    loss = tf.reduce_sum(weights)
    weights.assign(weights * 0.9)  # as by the gradient of its square
    print(f"epoch {{epoch}} loss: {{float(loss):.4f}}", flush=True)
    time.sleep(0.5)
"""
SEVERAL, ONE = "strategy = tf.distribute.{}()".format, "tf.name_scope('x')"
# Start of a program, the scope of its model, and whether its separately training tasks are connected.
PROGRAMS: dict[str, tuple[str, str, bool | None]] = {
    "in the scope": (SEVERAL("MultiWorkerMirroredStrategy"), "strategy.scope()", None),
    "outside the scope": (SEVERAL("MultiWorkerMirroredStrategy"), ONE, True),
    "no strategy": ("", ONE, False),
    "a strategy for one host": (SEVERAL("MirroredStrategy"), "strategy.scope()", False),
    "without TF_CONFIG": (
        "del os.environ['TF_CONFIG']\n" + SEVERAL("MultiWorkerMirroredStrategy"),
        "strategy.scope()",
        False,
    ),
    "DTensor without its variables": (DTENSOR, "", False),
}
# tests/scripts has programs that use the scope, which are not reported.
IN_THE_SUITE = ("outside the scope",)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in IN_THE_SUITE else pytest.mark.soak) for one in PROGRAMS]
)
def test_tasks_that_train_separate_models_are_reported(desk: Desk, name: str) -> None:
    begins, scope, connected = PROGRAMS[name]
    desk.script("t.py", (KERAS if scope else begins).format(begins=begins, scope=scope))
    viewer = desk.launch("--", "t.py").ended()
    expected = [] if connected is None else [connected]
    assert [one["connected"] for one in desk.named("PeersReported")] == expected, viewer.stdout
    (ended,) = desk.named("RunEnded")
    words = "train separate models" if connected else "run separately"
    assert (words in "".join(ended.get("warnings", []))) == bool(expected)
