"""Parts of a plan that every engine needs: values shared by all tasks, the environment, a name."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TypeVar

from orchestrator import orchestrate_rank
from orchestrator.errors import UsageError
from orchestrator.model import AutoShard, Inventory, RunPlan, TaskSpec
from orchestrator.planning.commands import is_builtin
from orchestrator.planning.environ import DEVICES, TF_CONFIG

_T = TypeVar("_T")

RANK_FILE = Path(orchestrate_rank.__file__)
# Set by orchestrate_rank.py, which cannot know the number of GPUs, or by the engine that assigns those.
_ELSEWHERE = {TF_CONFIG, DEVICES, "CUDA_DEVICE_ORDER", *itertools.chain(*orchestrate_rank.CONTRACTS.values())}
_ELSEWHERE.remove("PET_NPROC_PER_NODE")


def only(values: Iterable[_T], what: str) -> _T:
    """Return the value that all tasks share; raise UsageError for several: an engine accepts one."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1:
        shown = " and ".join(map(str, distinct[:2]))
        raise UsageError(
            f"tasks differ in {what}: {shown}",
            why="the engine starts all of them alike",
            hint="make hosts alike, or choose some of them with --only",
        )
    return distinct[0]


def environment(tasks: Sequence[TaskSpec]) -> dict[str, str]:
    """Return the variables of tasks that are started alike, without those that only our nodes read."""
    kept = (
        tuple(
            (name, value)
            for name, value in sorted(task.env.items())
            if name not in _ELSEWHERE and not name.startswith("ORCHESTRATE_")
        )
        for task in tasks
    )
    return dict(only(kept, "their environment"))


def roles(plan: RunPlan) -> dict[str, int]:
    """Count the tasks of each role, in rank order."""
    return dict(Counter(task.id.role.value for task in plan.tasks))


def name_of(plan: RunPlan, longest: int) -> str:
    """Return a name for the job: the user's, or the program's."""
    program = "training" if is_builtin(plan.command) else PurePath(plan.command[0]).stem
    name = re.sub(r"[^a-z0-9]+", "-", (plan.name or program).lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", name)[:longest].strip("-") or "training"


def remarks(plan: RunPlan, inventory: Inventory) -> list[str]:
    """Return what the files do not do compared with a launch."""
    lines = []
    if inventory.environment is not None:
        lines.append("[env] is not created there: the environment must have its packages")
    if plan.data is not None:
        lines.append("[data] is not sent: copy it to where the program expects it")
    if plan.recipe.legacy_keras is not None:
        lines.append("tf.keras is Keras 2: the environment has to have the package tf-keras")
    elif plan.recipe.repair_keras:
        lines.append("Keras 3 is not repaired for several tasks: that needs `orchestrate launch`")
    if plan.recipe.auto_shard is AutoShard.DATA:
        lines.append("auto_shard is not set there: set AutoShardPolicy.DATA in the program")
    return lines
