"""TF_CONFIG, parsed: the cluster's tasks, which of them this process is, and the strategy that follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker_entry.failure import UsageError

SINGLE = ("one-device", "mirrored", "central-storage", "tpu")
TRAIN = ("chief", "worker")
KINDS = (*TRAIN, "ps", "evaluator")


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
    if not text:
        return ALONE
    try:
        config = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise _malformed(f"it is no JSON object: {error}") from None
    jobs = _jobs(config.get("cluster", {}))
    return Cluster(jobs, _task(config.get("task", {}), jobs))


def _jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict):
        raise _malformed('"cluster" must be an object of task types')
    for kind, addresses in cluster.items():
        if kind not in KINDS:
            raise _malformed(f'"{kind}" is not a task type; TensorFlow knows {", ".join(KINDS)}')
        if not isinstance(addresses, list) or not all(isinstance(a, str) and ":" in a for a in addresses):
            raise _malformed(f'"{kind}" must be a list of "host:port"')
    return {kind: tuple(addresses) for kind, addresses in cluster.items() if addresses}


def _task(task: Any, jobs: Mapping[str, tuple[str, ...]]) -> Task:
    if not jobs and not task:
        return ALONE.task
    if not isinstance(task, dict):
        raise _malformed('"task" must be an object with "type" and "index"')
    kind, index = task.get("type"), task.get("index")
    if kind not in KINDS or not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise _malformed(f'"task" must have a "type" ({", ".join(KINDS)}) and an "index" from 0')
    # An evaluator is not a member of the cluster it watches.
    if kind != "evaluator" and index >= len(jobs.get(kind, ())):
        raise _malformed(f'task {kind}/{index} is not in "cluster"')
    return Task(kind, index)


def _malformed(why: str) -> UsageError:
    return UsageError(
        "TF_CONFIG cannot be used",
        why=why,
        hint='e.g. {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}',
    )


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
