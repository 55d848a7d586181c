"""Creating the strategy: the devices first, then the object that distributes a model over them.

For several tasks this is the moment they meet, with a time limit: TensorFlow alone waits for an hour in
silence.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from worker_entry.cluster import SINGLE, TRAIN, Chosen, Cluster
from worker_entry.failure import ExpectedError, UsageError
from worker_entry.options import Options

HEARTBEAT = 30.0  # a shorter freeze (a suspended disk, a paused VM) is tolerated
AFTER_TENSORFLOW = 15.0  # seconds; it names the missing tasks if it detects them


def make(chosen: Chosen, options: Options, cluster: Cluster) -> Any:
    name = chosen.name
    if name in SINGLE:
        _split_cpu(options.devices)
    devices = list(options.devices) or None
    if name == "one-device":
        gpu = tf.config.list_physical_devices("GPU")
        return tf.distribute.OneDeviceStrategy(devices[0] if devices else "gpu:0" if gpu else "cpu:0")
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    if name == "central-storage":
        return tf.distribute.experimental.CentralStorageStrategy(devices, "cpu:0" if devices else None)
    if name == "tpu":
        return _tpu(options.tpu)
    if name == "parameter-server":
        with bounded(options.start_timeout):
            return tf.distribute.ParameterServerStrategy(
                tf.distribute.cluster_resolver.TFConfigClusterResolver()
            )
    _show_only(options.devices)
    if not cluster.distributed:
        return tf.distribute.MultiWorkerMirroredStrategy()
    _configure_coordination(cluster, options.start_timeout)
    with bounded(options.start_timeout + AFTER_TENSORFLOW):
        return tf.distribute.MultiWorkerMirroredStrategy()


def _show_only(devices: Sequence[str]) -> None:
    """Hide other devices: MultiWorkerMirroredStrategy takes all visible GPUs, or else the CPU."""
    if not devices:
        return
    gpus = tf.config.list_physical_devices("GPU")
    numbers = [int(device.rpartition(":")[2]) for device in devices]
    if any("gpu" not in device.lower() for device in devices) or max(numbers) >= len(gpus):
        raise UsageError(
            f"--devices {','.join(devices)} cannot be used between tasks",
            why=f"one of several tasks uses GPUs ({len(gpus)} here) or the CPU",
            hint="no --devices",
        )
    tf.config.set_visible_devices([gpus[number] for number in numbers], "GPU")


def _split_cpu(devices: Sequence[str]) -> None:
    """Make two devices of one for `cpu:0,cpu:1`, which allows trying such a strategy anywhere."""
    numbers = [int(device.rpartition(":")[2]) for device in devices if "cpu" in device.lower()]
    if numbers and max(numbers) > 0:
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(max(numbers) + 1)]
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)


def _tpu(name: str | None) -> Any:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name or "")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ImportError, OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise ExpectedError(
            f"no TPU was found; looked for {name or 'one of this machine'} (--tpu, TPU_NAME)",
            why=str(error).strip().splitlines()[0][:200],
            hint="--tpu local on a TPU VM, --tpu NAME for one in the network, or another --strategy",
        ) from None
    return tf.distribute.TPUStrategy(resolver)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """End this process with status 1, showing where it hangs, unless the body finishes in time.

    The body may hold the interpreter lock, so neither a thread nor a signal handler of ours would run.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _configure_coordination(cluster: Cluster, timeout: float) -> None:
    """Set what the strategy would, with our timeouts: its own are an hour and ten seconds."""
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.leader.kind}/replica:0/task:{cluster.leader.index}",
        cluster_register_timeout_in_ms=int(timeout * 1000),
        heartbeat_timeout_in_ms=int(HEARTBEAT * 1000),
    )
    config = context.context().coordination_service
    # Without this barrier (available from about 2.17 on) the timeout has no effect on the leader.
    if hasattr(config, "cluster_register_with_barrier"):
        config.cluster_register_with_barrier = True
    for kind in TRAIN:
        if kind in cluster.jobs:
            config.coordinated_job_list.add(name=kind, num_tasks=len(cluster.jobs[kind]))
