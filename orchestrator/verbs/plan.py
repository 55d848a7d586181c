"""From a request to a plan: what is read here, and what will probably go wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TypeAlias

from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import Admission, FrameworkName, Revalidate, RunPlan, TaskId
from orchestrator.planning import plan, selection
from orchestrator.program import findings, refusals
from orchestrator.program.sources import SourceFile
from orchestrator.requests import LaunchRequest
from orchestrator.store import new_run_id
from orchestrator.sync.contents import CodeSource, check_builtin
from orchestrator.verbs import code, keeping
from orchestrator.verbs.environment import check_data, with_environment

_TENSORFLOW = re.compile(r"(?i)\b(?:tensorflow|tf_?keras|keras)")
# Its plan, the user's code where it is to be sent, and what will probably go wrong.
Planned: TypeAlias = tuple[RunPlan, CodeSource | None, tuple[findings.Finding, ...]]


def wanted_tasks(tasks: Iterable[TaskId], plan: RunPlan, whose: str) -> set[str]:
    """The tasks that were named, none for all; raise UsageError for one that there is not."""
    wanted = {str(task) for task in tasks}
    if unknown := wanted - {str(spec.id) for spec in plan.tasks}:
        raise UsageError(
            f"{whose} has no task {min(unknown)}",
            hint=f"name one of its tasks: {', '.join(str(spec.id) for spec in plan.tasks)}",
        )
    return wanted


def make_plan(request: LaunchRequest, *, sends: bool = True, resolves: bool = True) -> Planned:
    """The plan, the user's code where it is to be sent, and what will probably go wrong; raise UsageError.

    Unless it `sends` the code, which may not be written yet, nothing is refused for what that lacks.
    """
    created = time.time()
    inventory = replace(request.inventory, job=request.job)
    if request.spares:
        inventory = selection.stand_by(inventory, request.spares)
    command = plan.choose_command(inventory.job, request.command)
    project = code.project(inventory, request.code) if sends and not plan.is_builtin(command) else None
    around = code.look(inventory, project)
    if sends:
        refusals.check(command, around)
        if command and plan.is_builtin(command):
            check_builtin(command)
    check_data(inventory)
    environment = None
    if inventory.environment is not None:
        inventory, environment, _ = with_environment(inventory, resolves=resolves)
    sources = code.read(command, around)
    layout = plan.lay_out(
        inventory,
        command=request.command,
        env=request.env,
        sources=tuple(source.text for source in sources),
    )
    # What a command of the user's own looks at is not known: it may be the network.
    usual = Revalidate.ALWAYS if inventory.job.validate else Revalidate.CHANGED
    when = inventory.job.validation or usual
    framework = FRAMEWORKS[layout.recipe.framework]
    tensorflow = layout.recipe.framework is FrameworkName.TENSORFLOW
    # What is set for TensorFlow is no news to a program that does not name it, as far as it can be read.
    known = plan.is_builtin(command) or plan.is_r(layout.tasks[0].argv) or not tensorflow
    known |= any(map(_TENSORFLOW.search, (*command, *(source.text for source in sources))))
    hiding = tuple(
        SourceFile(path, code.text(path, around) or "")
        for path in findings.hiding(command, around.sent, sources)
    )
    scene = findings.Scene(layout.tasks, layout.recipe, sources, hiding=hiding)
    found = findings.find(scene)
    if_shared = findings.find(replace(scene, one_folder=True))
    own = findings.own_paths(
        command, sources, lambda path: around.exists(path) and not around.everywhere(path)
    )
    planned = plan.assign(
        inventory,
        layout,
        run=str(new_run_id(created)) if sends else "preflight",
        name=request.name,
        owner=keeping.owner(),
        created=created,
        admission=Admission(
            preflight=request.preflight,
            validate=when is not Revalidate.NEVER and bool(inventory.job.validate or framework.validation),
            recall=when is Revalidate.CHANGED,
            validate_command=inventory.job.validate,
        ),
        environment=environment,
        cwd="" if project is None else project.root.cwd,
        notes=(*layout.took, *(layout.notes if known else ()), *map(str, found)),
        if_shared=tuple(str(one) for one in if_shared if one not in found),
        own_paths=own,
    )
    return planned, project, found
