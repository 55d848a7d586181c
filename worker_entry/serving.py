"""The worker and ps tasks of a parameter-server cluster: they answer the chief, and end when it has ended."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from worker_entry.cluster import Cluster
from worker_entry.failure import EXIT_OK, EXIT_TERMED
from worker_entry.options import Options
from worker_entry.presence import Presence
from worker_entry.report import Reporter
from worker_entry.watch import look

AFTER_TERM = 25.0  # seconds the chief is given to save what the ps tasks hold


def serve(cluster: Cluster, options: Options, reporter: Reporter) -> int:
    """Answer until the chief has come and gone; returns the exit status.

    TensorFlow's server never ends by itself. SIGTERM goes to all tasks of a run alike, and the chief can
    save only while the ps tasks still answer; so it is obeyed when the chief is gone, or after a while.
    """
    # Without this, a call to a task that is being replaced fails at once and not after a wait.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    server = tf.distribute.Server(
        tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.jobs.items()}),
        job_name=cluster.task.kind,
        task_index=cluster.task.index,
        protocol="grpc",
        start=True,
    )
    termed = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: termed.set())
    chief = cluster.address(cluster.leader)
    print(f"{cluster.task} serves from {server.target}; it ends when {cluster.leader} at {chief} has ended")
    reporter.ready(f"serves {cluster.leader}")
    if follow(Presence(str(cluster.leader), lambda: look(chief), options.start_timeout), termed.is_set):
        print(f"{cluster.leader} has ended")
        return EXIT_OK
    return EXIT_TERMED


def follow(
    chief: Presence,
    termed: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Any] = time.sleep,
) -> bool:
    """True when the chief has come and gone, False when TERM ended it first."""
    leave_by = math.inf
    while not chief.gone():
        if termed():
            leave_by = min(leave_by, clock() + (AFTER_TERM if chief.met else 0))
        if clock() >= leave_by:
            return False
        pause(0.5)
    return True
