"""A model outside the strategy's scope: the workers are connected, and train separate models."""

from __future__ import annotations

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk

PROGRAM = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with {scope}:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.random.rand(64, 4), np.random.rand(64, 1), epochs=3, verbose=2)
"""


@pytest.mark.parametrize(("scope", "apart"), [("tf.name_scope('x')", True), ("strategy.scope()", False)])
def test_a_model_outside_the_scope_is_reported(desk: Desk, scope: str, apart: bool) -> None:
    desk.script("t.py", PROGRAM.format(scope=scope))
    viewer = desk.launch("--", "t.py")
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert [one["connected"] for one in desk.named("PeersReported")] == [True] * apart
    (ended,) = desk.named("RunEnded")
    assert ("train separate models" in "".join(ended.get("warnings", []))) == apart
