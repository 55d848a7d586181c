"""How a run starts here: its plan, its folder, its keeper."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from orchestrator.config import values
from orchestrator.config.mistakes import Wrong
from orchestrator.errors import UsageError
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.launching import code, keeping
from orchestrator.launching.environment import check_data, with_environment
from orchestrator.model import (
    Admission,
    FrameworkName,
    Host,
    Inventory,
    Job,
    Revalidate,
    RunPlan,
    TaskId,
    Terminal,
)
from orchestrator.names import RunId
from orchestrator.planning import environ, plan, selection
from orchestrator.program import findings, refusals
from orchestrator.store import RunFolder, new_run_id, runs_root
from orchestrator.store.key import key_path, own_key
from orchestrator.sync.contents import CodeSource, check_builtin

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets

_TENSORFLOW = re.compile(r"(?i)\b(?:tensorflow|tf_?keras|keras)")
# Its plan, the user's code where it is to be sent, and what will probably go wrong.
Planned: TypeAlias = tuple[RunPlan, CodeSource | None, tuple[findings.Finding, ...]]
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
    plan_it: Callable[[], Planned],
) -> RunFolder:
    """Plan the run, make its folder, fork its keeper; raise UsageError before anything was made.

    `logins` asks a person for what only a person knows of the hosts' keys.
    """
    key, (planned, project, _) = own_key(), plan_it()
    for option in ("other_ports", "wait"):  # of a replay, too
        if getattr(arguments, option, False):
            asked: Any = {option: True}
            planned = replace(planned, admission=replace(planned.admission, **asked))
    if (task := getattr(arguments, "attach", None)) is not None:
        wanted_tasks([task], planned, "the run")
        size, kind = os.get_terminal_size(), os.environ.get("TERM", "xterm")
        terminal = Terminal(task, size.lines, size.columns, kind)
        once = replace(planned.restarts, most=0, min_hosts=None)
        # Whoever looks at a breakpoint thinks.
        planned = replace(planned, terminal=terminal, restarts=once, hang_timeout=0.0)
    if key is None:
        note = f"no key could be made ({key_path()}): {_UNSEALED}"
        planned = replace(planned, notes=(*planned.notes, note))
    wanted_tasks(arguments.task, planned, "the run")
    told = notify_command(inventory.job, getattr(arguments, "notify", None))
    secrets = environ.values_here(planned.secrets, os.environ)
    asked = logins((*planned.hosts, *planned.spares))
    folder = RunFolder(runs_root(), RunId(planned.run))
    folder.create(planned)
    if told:
        folder.write_words(folder.notify, told)
    if metrics := getattr(arguments, "metrics", None):
        folder.write_words(folder.metrics, [str(Path(metrics).absolute())])
    keeping.start(keeping.Errand(folder, planned, key, asked, secrets, project, new=True))
    return folder


def make_plan(inventory: Inventory, arguments: argparse.Namespace, *, sends: bool = True) -> Planned:
    """The plan, the user's code where it is to be sent, and what will probably go wrong; raise UsageError.

    Unless it `sends` the code, which may not be written yet, nothing is refused for what that lacks.
    """
    created = time.time()
    numbers = ("max_restarts", "min_hosts", "hang_timeout")
    given: dict[str, Any] = {name: getattr(arguments, name) for name in numbers}
    given["validation"] = Revalidate(arguments.validate) if arguments.validate else None
    changes = {key: value for key, value in given.items() if value is not None}
    inventory = replace(inventory, job=replace(inventory.job, **changes))
    if arguments.spares:
        inventory = selection.stand_by(inventory, arguments.spares)
    command = plan.choose_command(inventory.job, arguments.command)
    project = code.project(inventory, arguments.code) if sends and not plan.is_builtin(command) else None
    around = code.look(inventory, project)
    if sends:
        refusals.check(command, around)
        if command and plan.is_builtin(command):
            check_builtin(command)
    check_data(inventory)
    environment = None
    if inventory.environment is not None:
        resolves = not getattr(arguments, "dry_run", False)
        inventory, environment, _ = with_environment(inventory, resolves=resolves)
    sources = code.read(command, around)
    layout = plan.lay_out(
        inventory,
        command=arguments.command,
        env=dict(arguments.env),
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
    scene = findings.Scene(layout.tasks, layout.recipe, sources)
    found = findings.find(scene) if tensorflow else ()
    if_shared = findings.find(replace(scene, one_folder=True)) if tensorflow else ()
    own = findings.own_paths(
        command, sources, lambda path: around.exists(path) and not around.everywhere(path)
    )
    planned = plan.assign(
        inventory,
        layout,
        run=str(new_run_id(created)) if sends else "preflight",
        name=arguments.name,
        owner=keeping.owner(),
        created=created,
        admission=Admission(
            preflight=not arguments.skip_preflight,
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


def notify_command(job: Job, wanted: str | None) -> tuple[str, ...]:
    """The argv that tells of the end, its program as an absolute path; () for none.

    Raise UsageError for one that could not be run: at the end of a night it would be too late.
    """
    try:
        argv = job.notify if wanted is None else values.command(wanted)
    except Wrong as wrong:
        raise UsageError(f"--notify {wrong}", hint="`--notify 'mail -s trained me@example.org'`") from wrong
    if not argv:
        return ()
    program = shutil.which(os.path.expanduser(argv[0]))  # noqa: PTH111 - a name without a slash stays one
    if program is None:
        raise UsageError(
            f"--notify: this machine has no program {argv[0]}",
            why="it is run here, by no shell, when the run has ended",
            hint="write its whole path; a script needs `chmod +x`",
        )
    return (os.path.abspath(program), *argv[1:])  # noqa: PTH100 - a link is run by its own name
