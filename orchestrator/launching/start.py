"""How a run starts here: its plan, its folder, its keeper."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.launching import code, keeping, notebook, notified, program
from orchestrator.launching.data import check_data
from orchestrator.launching.environment import planned_environment
from orchestrator.model import Admission, FrameworkName, Host, Inventory, OnHang, Revalidate, RunPlan, TaskId
from orchestrator.names import RunId
from orchestrator.planning import environ, plan
from orchestrator.program import findings, refusals
from orchestrator.store import RunFolder, new_run_id, runs_root
from orchestrator.store.key import key_path, own_key

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets

_UNSEALED = "from another machine this run can be followed and stopped, and not started again"


def wanted_tasks(tasks: Iterable[TaskId], plan: RunPlan, whose: str) -> set[str]:
    """The tasks that were named, none for all; raise UsageError for one that there is not."""
    wanted = {str(task) for task in tasks}
    if unknown := wanted - {str(spec.id) for spec in plan.tasks}:
        raise UsageError(
            f"{whose} has no task {min(unknown)}",
            hint=f"name one of its tasks: {', '.join(str(spec.id) for spec in plan.tasks)}",
        )
    return wanted


def start(
    inventory: Inventory,
    arguments: argparse.Namespace,
    logins: Callable[[Sequence[Host]], Secrets | None],
    *,
    other_ports: bool,
) -> RunFolder:
    """Plan the run, make its folder, fork its keeper; raise UsageError before anything was made.

    `logins` asks a person for what only a person knows of the hosts' keys.
    """
    now = time.time()
    run = new_run_id(now)

    planned, project, found = make_plan(inventory, arguments, run, now)
    wanted_tasks(arguments.task, planned, "the run")
    admission = dataclasses.replace(planned.admission, other_ports=other_ports)
    key = own_key()
    unsealed = () if key is not None else (f"no key could be made ({key_path()}): {_UNSEALED}",)
    notes = (*planned.notes, *map(str, found), *unsealed)
    planned = dataclasses.replace(planned, notes=notes, admission=admission)
    told = notified.command(inventory.job, getattr(arguments, "notify", None))
    secrets = environ.values_here("secrets", inventory.job.secrets, os.environ)
    folder = RunFolder(runs_root(), run)
    folder.create(planned)
    if told:
        folder.write_notify(told)
    asked = logins((*planned.hosts, *planned.spares))
    keeping.keep_new(folder, planned, project, secrets, key=key, asked=asked)
    return folder


def make_plan(
    inventory: Inventory, arguments: argparse.Namespace, run: RunId, created: float
) -> tuple[RunPlan, code.Project | None, tuple[findings.Finding, ...]]:
    """The plan, the user's code where it is to be sent, and what will probably go wrong; raise UsageError."""
    given = {
        "legacy_keras": False if arguments.no_legacy_keras else None,
        "max_restarts": arguments.max_restarts,
        "min_hosts": arguments.min_hosts,
        "lifeline": arguments.lifeline,
        "hang_timeout": arguments.hang_timeout,
        "validation": Revalidate(arguments.validate) if arguments.validate else None,
        "on_hang": OnHang(arguments.on_hang) if arguments.on_hang else None,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    inventory = dataclasses.replace(inventory, job=dataclasses.replace(inventory.job, **changes))
    if arguments.on_hang and not inventory.job.hang_timeout:
        raise UsageError(
            f"--on-hang {arguments.on_hang} needs --hang-timeout",
            hint=f"`--hang-timeout 600 --on-hang {arguments.on_hang}`",
        )
    arguments.command, converted = notebook.as_script(arguments.command, Path.cwd())
    command = plan.choose_command(inventory.job, arguments.command)
    project = None if plan.is_builtin(command) else code.project(inventory, arguments.code)
    around = program.look(inventory, project)
    refusals.check(command, around)
    program.check_options(command)
    check_data(inventory)
    inventory, environment = planned_environment(inventory, resolve=not getattr(arguments, "dry_run", False))
    sources = program.read(command, around)
    planned = plan.assign(
        inventory,
        command=arguments.command,
        env=dict(arguments.env),
        name=arguments.name,
        run=str(run),
        owner=keeping.owner(),
        created=created,
        environ=os.environ,
        sources=tuple(source.text for source in sources),
    )
    # What a command of the user's own looks at is not known: it may be the network.
    usual = Revalidate.ALWAYS if inventory.job.validate else Revalidate.CHANGED
    when = inventory.job.validation or usual
    framework = FRAMEWORKS[planned.recipe.framework]
    admission = Admission(
        preflight=not arguments.skip_preflight,
        validate=when is not Revalidate.NEVER and bool(inventory.job.validate or framework.validation),
        recall=when is Revalidate.CHANGED,
        validate_command=inventory.job.validate,
    )
    cwd = "" if project is None else project.root.cwd
    tensorflow = planned.recipe.framework is FrameworkName.TENSORFLOW
    known = not tensorflow or program.names_tensorflow(command, around, sources)
    noted = planned.notes if known else ()
    ignored = inventory.job.lint_ignore if tensorflow else tuple(findings.CODES)
    scene = findings.Scene(planned, sources)
    found = findings.find(scene, ignored)
    if_shared = findings.find(dataclasses.replace(scene, one_folder=True), ignored)
    own = findings.own_paths(
        command, sources, lambda path: around.exists(path) and not around.everywhere(path)
    )
    own = {} if findings.PATH in inventory.job.lint_ignore else own
    planned = dataclasses.replace(
        planned,
        admission=admission,
        cwd=cwd,
        environment=environment,
        if_shared=tuple(str(one) for one in if_shared if one not in found),
        find_program=findings.PROGRAM not in inventory.job.lint_ignore,
        data=inventory.data,
        notes=(*converted, *noted),
        own_paths=tuple(own),
        own_paths_at=tuple(own.values()),
    )
    return planned, project, found
