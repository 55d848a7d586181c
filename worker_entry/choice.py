"""Which strategy, and why: from what was asked, TF_CONFIG and the devices."""

from __future__ import annotations

from dataclasses import dataclass

from worker_entry.cluster import Cluster
from worker_entry.failure import UsageError

ALONE = ("one-device", "mirrored", "central-storage", "tpu")


@dataclass(frozen=True)
class Chosen:
    name: str
    why: str


def choose(asked: str, cluster: Cluster, gpus: int, tpu: str | None) -> Chosen:
    """The strategy's name; raises UsageError when TF_CONFIG says something else than was asked for."""
    tasks = sum(len(addresses) for addresses in cluster.jobs.values())
    parameter_servers = bool(cluster.jobs.get("ps"))
    if asked == "auto":
        return _automatic(cluster, tasks, gpus, tpu, parameter_servers=parameter_servers)
    if asked == "parameter-server" and not (parameter_servers and cluster.jobs.get("chief")):
        raise UsageError(
            "--strategy parameter-server needs chief, worker and ps tasks",
            why="TF_CONFIG names none of one of them" if tasks else "there is no TF_CONFIG",
            hint="give the hosts these roles, or --strategy auto",
        )
    if asked == "multi-worker" and parameter_servers:
        raise UsageError(
            "--strategy multi-worker has no use for ps tasks",
            why="TF_CONFIG names some",
            hint="--strategy auto",
        )
    if asked in ALONE and tasks > 1:
        raise UsageError(
            f"--strategy {asked} trains alone, but TF_CONFIG names {tasks} tasks",
            why="each task would train a model of its own",
            hint="--strategy auto, or no TF_CONFIG",
        )
    return Chosen(asked, "as asked")


def _automatic(
    cluster: Cluster, tasks: int, gpus: int, tpu: str | None, *, parameter_servers: bool
) -> Chosen:
    if parameter_servers:
        if not cluster.jobs.get("chief"):
            raise UsageError(
                "parameter servers need a chief",
                why="TF_CONFIG has ps tasks and no chief",
                hint='add a "chief"',
            )
        return Chosen("parameter-server", f"TF_CONFIG names {len(cluster.jobs['ps'])} ps")
    if tasks > 1:
        return Chosen("multi-worker", f"TF_CONFIG names {tasks} tasks")
    if tpu:
        return Chosen("tpu", f"there is a TPU by the name of {tpu}")
    if gpus > 1:
        return Chosen("mirrored", f"{gpus} GPUs and no other task")
    return Chosen("one-device", "one device and no other task")
