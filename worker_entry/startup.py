"""The moment the tasks of a cluster meet, bounded in time: TensorFlow alone waits an hour in silence."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from worker_entry.cluster import Cluster
from worker_entry.options import Options

HEARTBEAT = 30.0  # a shorter freeze (a suspended disk, a paused VM) is survived


def multi_worker(cluster: Cluster, options: Options) -> Any:
    if cluster.distributed:
        _configure_coordination(cluster, timeout=120.0)
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=kinds[options.communication.upper()]
        )
    )


def _configure_coordination(cluster: Cluster, timeout: float) -> None:
    """What the strategy would set itself, with our times and with a barrier.

    Without the barrier, which has no public option, the time-out alone does nothing.
    """
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.leader.kind}/replica:0/task:{cluster.leader.index}",
        cluster_register_timeout_in_ms=int(timeout * 1000),
        heartbeat_timeout_in_ms=int(HEARTBEAT * 1000),
    )
    config = context.context().coordination_service
    config.cluster_register_with_barrier = True
    for kind in ("chief", "worker"):
        if kind in cluster.jobs:
            config.coordinated_job_list.add(name=kind, num_tasks=len(cluster.jobs[kind]))
