"""The moment the tasks of a cluster meet, bounded in time: TensorFlow alone waits an hour in silence."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry import report
from worker_entry.cluster import Cluster
from worker_entry.options import Options

HEARTBEAT = 30.0  # a shorter freeze (a suspended disk, a paused VM) is survived
WATCHER_NEEDS = 5.0  # seconds to look at every peer and name the silent ones


def multi_worker(cluster: Cluster, options: Options) -> Any:
    """A MultiWorkerMirroredStrategy; the process ends with status 1 when the others do not come in time."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    communication = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds[options.communication.upper()]
    )
    if not cluster.distributed:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
    _configure_coordination(cluster, options.start_timeout)
    peers = {str(task): cluster.address(task) for task in cluster.trainers if task != cluster.task}
    with bounded(options.start_timeout, peers):
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)


def parameter_server(cluster: Cluster, options: Options) -> Any:
    """For the chief: the others answer it (see `serving`), and it must reach all of them to begin."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    others = [task for task in cluster.tasks if task != cluster.task]
    with bounded(options.start_timeout, {str(task): cluster.address(task) for task in others}):
        return tf.distribute.ParameterServerStrategy(resolver)


@contextmanager
def bounded(seconds: float, peers: Mapping[str, str]) -> Iterator[None]:
    """End this process with status 1 unless the body is over in time; a watcher names who is missing.

    The body may hold the interpreter's lock, so neither a thread nor a signal handler of ours would run.
    """
    order = {"seconds": seconds, "peers": dict(peers), "report": os.environ.get(report.VARIABLE)}
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("watch.py"))], stdin=subprocess.PIPE
    )
    assert watcher.stdin is not None
    watcher.stdin.write(json.dumps(order).encode() + b"\n")
    watcher.stdin.flush()
    with Path(os.devnull).open("w") as nowhere:
        faulthandler.dump_traceback_later(seconds + WATCHER_NEEDS, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            watcher.stdin.close()
            watcher.wait()


def _configure_coordination(cluster: Cluster, timeout: float) -> None:
    """What the strategy would set itself, with our times: the watcher should speak before TensorFlow does."""
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.leader.kind}/replica:0/task:{cluster.leader.index}",
        cluster_register_timeout_in_ms=int((timeout + 60) * 1000),
        heartbeat_timeout_in_ms=int(HEARTBEAT * 1000),
    )
    config = context.context().coordination_service
    # Without this barrier (there from 2.17 or so on) the time-out does nothing on the leader.
    if hasattr(config, "cluster_register_with_barrier"):
        config.cluster_register_with_barrier = True
    for kind in ("chief", "worker"):
        if kind in cluster.jobs:
            config.coordinated_job_list.add(name=kind, num_tasks=len(cluster.jobs[kind]))
