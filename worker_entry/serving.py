"""The worker and ps tasks of a parameter-server cluster: they answer the chief, and end when it has ended."""

from __future__ import annotations

import os
import signal
import threading

import tensorflow as tf

from worker_entry.cluster import Cluster
from worker_entry.failure import EXIT_OK, EXIT_TERMED
from worker_entry.options import Options
from worker_entry.ports import Presence, follow, look
from worker_entry.report import Reporter


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
    address = cluster.address(cluster.leader)
    chief = Presence(str(cluster.leader), lambda: look(address), options.start_timeout)
    print(f"{cluster.task} serves from {server.target}; it ends when {cluster.leader} has ended")
    reporter.ready(f"serves {cluster.leader}")
    if follow(chief, termed.is_set):
        print(f"{cluster.leader} has ended")
        return EXIT_OK
    return EXIT_TERMED
