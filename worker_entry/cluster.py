"""TF_CONFIG, parsed: the cluster's tasks, which of them this process is, and the strategy that follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from worker_entry.failure import UsageError

SINGLE = ("one-device", "mirrored", "central-storage", "tpu")
TRAIN = ("chief", "worker")
KINDS = {*TRAIN, "ps", "evaluator"}


@dataclass(frozen=True)
class Task:
    kind: str
    index: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.index}"


@dataclass(frozen=True)
class Cluster:
    """Every task's address by role, in TensorFlow's order, and this task; empty for a single process."""

    jobs: Mapping[str, tuple[str, ...]]
    task: Task

    @property
    def distributed(self) -> bool:
        return sum(len(addresses) for addresses in self.jobs.values()) > 1

    @property
    def trainers(self) -> tuple[Task, ...]:
        """Return the tasks that take part in a synchronous step, leader first."""
        return tuple(Task(kind, i) for kind in TRAIN for i in range(len(self.jobs.get(kind, ()))))

    @property
    def leader(self) -> Task:
        return self.trainers[0] if self.trainers else self.task

    @property
    def is_leader(self) -> bool:
        return self.task == self.leader


ALONE = Cluster({}, Task("worker", 0))


def parse(text: str | None) -> Cluster:
    """Parse a TF_CONFIG value; without one this process is alone. Raise UsageError if it is malformed."""
    try:
        config = json.loads(text or "{}")
        if not config:
            return ALONE
        jobs = {kind: tuple(addresses) for kind, addresses in config["cluster"].items() if addresses}
        kind, index = config["task"]["type"], config["task"]["index"]
        # An evaluator is not a member of the cluster it watches.
        if not {*jobs, kind} <= KINDS or (kind != "evaluator" and index not in range(len(jobs[kind]))):
            raise ValueError(f'task {kind}/{index} is not in "cluster", or a type is none of {sorted(KINDS)}')
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            "TF_CONFIG cannot be used",
            why=f"{type(error).__name__}: {error}",
            hint='e.g. {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}',
        ) from None
    return Cluster(jobs, Task(kind, index))


@dataclass(frozen=True)
class Chosen:
    name: str
    why: str


def choose(name: str, cluster: Cluster, gpus: int, tpu: str | None) -> Chosen:
    """Return the strategy's name; raise UsageError if TF_CONFIG contradicts the requested one."""
    tasks = sum(len(addresses) for addresses in cluster.jobs.values())
    servers = len(cluster.jobs.get("ps", ()))
    if name in ("auto", "parameter-server") and servers and not cluster.jobs.get("chief"):
        raise UsageError("parameter servers need a chief", why="TF_CONFIG has none", hint='add a "chief"')
    if name == "auto":
        return _automatic(tasks, servers, gpus, tpu)
    if name == "parameter-server" and not servers:
        raise UsageError(
            "--strategy parameter-server needs chief, worker and ps tasks",
            why="TF_CONFIG names no ps" if tasks else "there is no TF_CONFIG",
            hint="give the hosts these roles, or --strategy auto",
        )
    if (name in SINGLE and tasks > 1) or (name == "multi-worker" and servers):
        raise UsageError(
            f"--strategy {name} has no use for {servers or tasks} {'ps ' if servers else ''}tasks",
            why="TF_CONFIG names them",
            hint="use --strategy auto, or remove TF_CONFIG",
        )
    return Chosen(name, "as asked")


def _automatic(tasks: int, servers: int, gpus: int, tpu: str | None) -> Chosen:
    if servers:
        return Chosen("parameter-server", f"TF_CONFIG names {servers} ps")
    if tasks > 1:
        return Chosen("multi-worker", f"TF_CONFIG names {tasks} tasks")
    if tpu:
        return Chosen("tpu", f"there is a TPU named {tpu}")
    if gpus > 1:
        return Chosen("mirrored", f"{gpus} GPUs and no other task")
    return Chosen("one-device", "one device and no other task")
