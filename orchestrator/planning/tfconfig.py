"""TF_CONFIG as text: the one contract between us and every TensorFlow script."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.model import Role, TaskId


def render(cluster: Mapping[str, tuple[str, ...]], task: TaskId) -> str:
    """One line of JSON, cluster before task, with the roles that exist in the order of `Role`."""
    roles = {role.value: list(cluster[role.value]) for role in Role if cluster.get(role.value)}
    return json.dumps({"cluster": roles, "task": {"type": task.role.value, "index": task.index}})


def parse(text: str) -> tuple[dict[str, tuple[str, ...]], TaskId]:
    """What `render` was given; raise ValueError for anything else."""
    try:
        config = json.loads(text)
        cluster = {Role(role).value: tuple(map(str, peers)) for role, peers in config["cluster"].items()}
        task = TaskId(Role(config["task"]["type"]), int(config["task"]["index"]))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"not a TF_CONFIG: {text[:200]!r}") from error
    return cluster, task
