"""`launch --continue` after Keras' BackupAndRestore: training goes on at the epoch where it was stopped."""

import re

import pytest

from tests.ssh.runs.desk import Desk, until

FIT = """
import time
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")

def begins(epoch, _logs=None):
    print("epoch", epoch, "step", int(model.optimizer.iterations.numpy()), flush=True)
    while epoch == {stays}:
        time.sleep(0.1)

x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
model.fit(
    x, x.sum(axis=1), batch_size=16, epochs=5, verbose=0,
    callbacks=[tf.keras.callbacks.BackupAndRestore("backup"), tf.keras.callbacks.LambdaCallback(begins)],
)
"""


def epochs(desk: Desk, run: str) -> dict[str, list[tuple[int, int]]]:
    """The epochs that each task has begun, with the optimizer's step."""
    return {
        path.stem: [(int(a), int(b)) for a, b in re.findall(r"epoch (\d+) step (\d+)", path.read_text())]
        for path in (desk.run_folder(run) / "logs").rglob("*.log")
    }


@pytest.mark.soak
def test_it_goes_on_at_the_epoch_where_it_was_stopped_with_one_host_replaced(three: Desk) -> None:
    hosts, job = three.cluster.hosts, '[job]\nbackup = "backup"\n'
    three.write_hosts(hosts[:2], job=job)
    three.script("fit.py", FIT.format(stays=3))
    first = three.detached("--", "fit.py")
    until(
        "it stays in the fourth epoch",
        lambda: [one[-1:] for one in epochs(three, first).values()] == [[(3, 12)]] * 2,
        150,
    )
    three.start("stop", "--now", first, "--hosts", str(three.hosts)).ended()

    three.write_hosts([hosts[0], hosts[2]], job=job)
    three.script("fit.py", FIT.format(stays=-1))
    viewer = three.launch("--continue", first, "--", "fit.py").ended(limit=150)
    second = three.run_id()
    assert epochs(three, second) == {f"worker-{n}": [(3, 12), (4, 16)] for n in range(2)}
    assert f"was copied from {hosts[0].name} to {hosts[2].name}" in viewer.stderr
