"""The worker and ps tasks of a parameter-server cluster: they serve the chief, and end after it."""

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
    """Serve until the chief has come and gone; return the exit status.

    TensorFlow's server never ends by itself. SIGTERM goes to all tasks of a run at once, and the chief can
    save only while the ps tasks still respond; so this task obeys it when the chief is gone, or after a
    while.
    """
    # Otherwise a call to a task that is being replaced fails at once instead of waiting.
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
    address = cluster.jobs[cluster.leader.kind][cluster.leader.index]
    chief = Presence(str(cluster.leader), lambda: look(address), options.start_timeout)
    print(f"{cluster.task} serves from {server.target}; it ends when {cluster.leader} has ended")
    reporter.ready(f"serves {cluster.leader}")
    if follow(chief, termed.is_set):
        print(f"{cluster.leader} has ended")
        return EXIT_OK
    return EXIT_TERMED
