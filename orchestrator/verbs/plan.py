"""From a request to a plan: what this machine has for it is read, and the plan is made of both."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.model import EnvironmentPlan, RunPlan, TaskId
from orchestrator.planning import plan
from orchestrator.program import findings, refusals
from orchestrator.requests import LaunchRequest
from orchestrator.store import new_run_id
from orchestrator.sync.contents import CodeSource, check_builtin
from orchestrator.verbs import code, keeping
from orchestrator.verbs.environment import check_data, with_environment


class Planned(Struct, frozen=True):
    """A launch that can start."""

    request: LaunchRequest  # a replay of which launches the same
    plan: RunPlan
    code: CodeSource | None  # None: worker_entry
    findings: tuple[findings.Finding, ...]


def wanted_tasks(tasks: Iterable[TaskId], plan: RunPlan, whose: str) -> set[str]:
    """The tasks that were named, none for all; raise UsageError for one that there is not."""
    wanted = {str(task) for task in tasks}
    if unknown := wanted - {str(spec.id) for spec in plan.tasks}:
        raise UsageError(
            f"{whose} has no task {min(unknown)}",
            hint=f"name one of its tasks: {', '.join(str(spec.id) for spec in plan.tasks)}",
        )
    return wanted


def make_plan(
    request: LaunchRequest, *, sends: bool = True, resolves: bool = True, notes: tuple[str, ...] = ()
) -> Planned:
    """Plan a launch of the code that is here; raise UsageError.

    Unless it `sends` the code, which may not be written yet, nothing is refused for what that lacks; unless
    it `resolves`, no package index is asked.
    """
    inventory = request.inventory
    command = plan.choose_command(inventory.job, request.command)
    if sends:
        command, converted = code.of_notebook(command, Path.cwd())
        if converted:
            request, notes = replace(request, command=command), (*converted, *notes)
    own = sends and not plan.is_builtin(command)
    project = code.project(inventory, request.code) if own else None
    if sends:
        refusals.check(command, code.look(inventory, project))
        if command and plan.is_builtin(command):
            check_builtin(command)
    check_data(inventory)
    environment = None
    if inventory.environment is not None:
        inventory, environment, _ = with_environment(inventory, resolves=resolves)
    run = None if sends else "preflight"
    made = plan_of(replace(request, inventory=inventory), project, environment, notes=notes, run=run)
    return replace(made, request=request)


def plan_of(
    request: LaunchRequest,
    project: CodeSource | None,
    environment: EnvironmentPlan | None,
    *,
    notes: tuple[str, ...],
    run: str | None = None,
) -> Planned:
    """Plan a launch of some code, whose hosts have the Pythons of an environment."""
    created = time.time()
    command = plan.choose_command(request.job, request.command)
    around = code.look(request.inventory, project)
    sources = code.read(command, around)
    facts = plan.LaunchFacts(
        run=run or str(new_run_id(created)),
        owner=keeping.owner(),
        created=created,
        sources=sources,
        own_paths=findings.own_paths(
            command, sources, lambda path: around.exists(path) and not around.everywhere(path)
        ),
        environment=environment,
        cwd="" if project is None else project.root.cwd,
        notes=notes,
    )
    made, found = plan.make(request, facts)
    return Planned(request, made, project, found)
