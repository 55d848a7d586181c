"""The side-car: a task beside the cluster that measures every new checkpoint on the test data."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from worker_entry import digest, models, scoring
from worker_entry.backup import Found, newest
from worker_entry.cluster import Cluster
from worker_entry.data import find
from worker_entry.failure import EXIT_OK, UsageError
from worker_entry.job import Score
from worker_entry.options import Options, folder
from worker_entry.presence import Presence
from worker_entry.report import Reporter
from worker_entry.watch import look


def run(options: Options, cluster: Cluster, reporter: Reporter) -> int:
    """Measure until the leader has ended, or SIGTERM says so, and the last checkpoint is measured."""
    checkpoints = folder(options.checkpoint_dir)
    if checkpoints is None:
        raise UsageError(
            "an evaluator task needs --checkpoint-dir", why="it follows what the others save there"
        )
    source = find.source(options, reporter)
    network = models.build(options, source)
    scoring.compiled(network.model, network)
    leader = cluster.address(cluster.leader)
    presence = Presence(str(cluster.leader), lambda: look(leader), options.start_timeout)
    reporter.ready(f"follows {checkpoints}")
    last: tuple[Found, Score] | None = None

    def measure(found: Found) -> None:
        nonlocal last
        if load(network.model, found):
            score = scoring.of_model(network.model, source, options.batch_size)
            print(f"step {found.step}: test loss {score.loss:.4f}, test accuracy {score.accuracy:.4f}")
            reporter.progress(found.step, score.loss, 0.0)
            last = found, score

    termed = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: termed.set())
    follow(lambda: newest(checkpoints), lambda: termed.is_set() or presence.gone(), measure, termed.wait)
    if last is None:
        print(f"there was no checkpoint in {checkpoints}")
        return EXIT_OK
    found, score = last
    reporter.result(
        digest=digest.of_weights(network.model.get_weights()),
        loss=score.loss,
        accuracy=None,
        test_loss=score.loss,
        test_accuracy=score.accuracy,
        dataset=source.name,
        note=f"the checkpoint of step {found.step}",
        steps=found.step,
        steps_per_second=0.0,
        seconds=0.0,
    )
    return EXIT_OK


def follow(
    look_for: Callable[[], Found | None],
    over: Callable[[], bool],
    measure: Callable[[Found], None],
    pause: Callable[[float], Any] = time.sleep,
) -> None:
    """Measure each newest checkpoint once; after the end of training look one last time."""
    measured = -1
    while True:
        ended = over()
        found = look_for()
        if found is not None and found.step > measured:
            measure(found)
            measured = found.step
        elif ended:
            return
        else:
            pause(1.0)


def load(model: Any, found: Found) -> bool:
    """False when the checkpoint went away while it was read: there is a newer one then."""
    try:
        tf.train.Checkpoint(model=model).restore(found.path).expect_partial()
    except tf.errors.NotFoundError:
        return False
    return True
