"""The strategy, made: the devices first, then the object that spreads a model over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from worker_entry import startup
from worker_entry.choice import ALONE, Chosen
from worker_entry.cluster import Cluster
from worker_entry.failure import ExpectedError, UsageError
from worker_entry.options import Options


def make(chosen: Chosen, options: Options, cluster: Cluster) -> Any:
    """Create it. For several tasks this is the moment they meet, so it is bounded in time."""
    if chosen.name in ALONE:
        _split_cpu(options.devices)
    devices = list(options.devices) or None
    match chosen.name:
        case "one-device":
            return tf.distribute.OneDeviceStrategy(_one_device(options.devices))
        case "mirrored":
            return tf.distribute.MirroredStrategy(devices)
        case "central-storage":
            return tf.distribute.experimental.CentralStorageStrategy(devices, "cpu:0" if devices else None)
        case "tpu":
            return _tpu(options.tpu)
        case "parameter-server":
            return startup.parameter_server(cluster, options)
        case _:
            _show_only(options.devices)
            return startup.multi_worker(cluster, options)


def _one_device(devices: Sequence[str]) -> str:
    if devices:
        return devices[0]
    return "gpu:0" if tf.config.list_physical_devices("GPU") else "cpu:0"


def _show_only(devices: Sequence[str]) -> None:
    """A MultiWorkerMirroredStrategy takes all GPUs it sees, and of a machine without any the one CPU."""
    if not devices:
        return
    gpus = tf.config.list_physical_devices("GPU")
    numbers = [int(device.rpartition(":")[2]) for device in devices]
    if any("gpu" not in device.lower() for device in devices) or max(numbers) >= len(gpus):
        raise UsageError(
            f"--devices {','.join(devices)} cannot be used between tasks",
            why=f"a task of several uses GPUs, of which there are {len(gpus)} here, or the one CPU",
            hint="no --devices",
        )
    tf.config.set_visible_devices([gpus[number] for number in numbers], "GPU")


def _split_cpu(devices: Sequence[str]) -> None:
    """`cpu:0,cpu:1` asks for two devices where there is one: a way to try such a strategy anywhere."""
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
        sought = (
            f"{name!r} (from --tpu or TPU_NAME)"
            if name
            else "a TPU of this machine; --tpu and TPU_NAME are empty"
        )
        raise ExpectedError(
            f"no TPU was found; looked for {sought}",
            why=str(error).strip().splitlines()[0][:200],
            hint="--tpu local on a TPU VM, --tpu NAME for one in the network, or another --strategy",
        ) from None
    return tf.distribute.TPUStrategy(resolver)
