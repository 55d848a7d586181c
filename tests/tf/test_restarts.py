"""Training that is interrupted, loses a machine, and ends as if nothing had happened."""

import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, kill_all, until
from tests.tf.gang import Gang, words, worker_entry

LIMIT = 150.0  # seconds
STEPS = 120
TRAINING = words(f"--dataset digits --deterministic --epochs 4 --steps-per-epoch {STEPS // 4}")
SAVING = words("--checkpoint-dir checkpoints --save-every 8")
FAST = {"pauses": [0.05], "host_return": 1.0}


@pytest.fixture
def desk(three: Desk) -> Desk:
    """Two training hosts and a spare, without shared folders."""
    hosts = [replace(host, spare=number == 2) for number, host in enumerate(three.cluster.hosts)]
    three.write_hosts(hosts, job="[job]\nhost_timeout = 2\n")
    return three


def results(desk: Desk, run: str) -> list[dict[str, Any]]:
    return [event["data"] for event in desk.named("TaskReported", run) if event["kind"] == "result"]


def saved(desk: Desk, run: str, number: int, slug: str) -> int:
    """Return the newest step saved by a task."""
    folder = desk.node_work(desk.cluster.hosts[number], run) / "checkpoints" / slug
    found = [re.fullmatch(r"step-(\d+)\.index", path.name) for path in folder.glob("*.index")]
    return max((int(match[1]) for match in found if match), default=0)


@pytest.mark.soak
def test_interrupted_and_uninterrupted_training_end_with_equal_weights(desk: Desk, tmp_path: Path) -> None:
    """A task is killed, then the first machine is lost: the spare gets the other machine's checkpoint."""
    with Gang(tmp_path / "undisturbed", worker_entry(*TRAINING), jobs={"worker": 2}) as whole:
        (expected,) = {result["digest"] for result in whole.finish()}

    desk.timings = FAST
    moment = random.Random()
    viewer, run = desk.begin("--max-restarts", "2", "--", *TRAINING, *SAVING)
    at = moment.randrange(8, STEPS // 4)
    until("it has saved", lambda: saved(desk, run, 1, "worker-1") >= at, LIMIT)
    (victim,) = desk.task_pids(run, "worker/1")
    os.kill(victim, signal.SIGKILL)
    viewer.shows("attempt 2: 2 tasks on 2 hosts")
    at = moment.randrange(STEPS // 4 + 16, STEPS // 2)
    until("it has saved more", lambda: saved(desk, run, 1, "worker-1") >= at, LIMIT)
    lost = desk.cluster.hosts[0]
    desk.kill_sshd(desk.cluster.servers[0])
    kill_all([*desk.machinery_of(run, lost), *desk.task_pids(run, "worker/0")])
    assert viewer.wait(LIMIT) == ExitStatus.OK, viewer.stdout + viewer.stderr
    assert f"{lost.name}: cannot be reached; {desk.cluster.hosts[2].name} takes its place" in viewer.stderr
    found = results(desk, run)
    assert [(result["digest"], result["steps"]) for result in found] == [(expected, STEPS)] * 2
    assert desk.named("RunEnded", run)[0]["attempts"] == 3
    began = [_first_step(desk, run, attempt) for attempt in ("1", "2", "3")]
    assert began == sorted(set(began)), began


def _first_step(desk: Desk, run: str, attempt: str) -> int:
    text = (desk.run_folder(run) / "logs" / attempt / "worker-1.log").read_text()
    found = re.search(r"continues at step (\d+)", text)
    return int(found[1]) if found else 1


# --- `launch --continue` after Keras' BackupAndRestore: at the epoch of the stop ---

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
    """Return the epochs started by each task, with the optimizer's step."""
    return {
        path.stem: [(int(a), int(b)) for a, b in re.findall(r"epoch (\d+) step (\d+)", path.read_text())]
        for path in (desk.run_folder(run) / "logs").rglob("*.log")
    }


@pytest.mark.soak
def test_a_run_continues_at_its_last_epoch_with_one_host_replaced(three: Desk) -> None:
    hosts, job = three.cluster.hosts, '[job]\nbackup = "backup"\n'
    three.write_hosts(hosts[:2], job=job)
    first = three.detached("--", three.script("fit.py", FIT.format(stays=3)))
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


# --- each task loads its own checkpoint, and one is killed before or after it has saved the last one ---

OWN = """
import json, os, signal, sys, time
import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
path = f"own-{index}.weights.h5"
if again := os.path.exists(path):
    model.load_weights(path)

def ends(epoch, _logs=None):
    killed, saved = sys.argv[1:]
    last = epoch == 2 and not again
    model.save_weights("new.weights.h5")  # by all tasks together
    if not last or index == 0 or killed == "after":
        os.replace("new.weights.h5", path)
    if last and index == 0:
        open(saved, "w").close()
    while last:
        if index == 1 and os.path.exists(saved):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)

x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
callbacks = [tf.keras.callbacks.LambdaCallback(on_epoch_end=ends)]
model.fit(x, x.sum(axis=1), batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
"""


@pytest.mark.soak
@pytest.mark.parametrize(("killed", "status"), [("before", 1), ("after", 0)])
def test_tasks_continue_only_from_equal_weights(desk: Desk, tmp_path: Path, killed: str, status: int) -> None:
    desk.timings = FAST
    words = ("--max-restarts", "1", "--", desk.script("own.py", OWN), killed, str(tmp_path / "saved"))
    viewer = desk.launch(*words).ended(status, limit=150)
    assert ("begin to train with different weights" in viewer.stderr) == (killed == "before")
    assert desk.named("RunEnded")[0]["attempts"] == 2
