"""`launch --replay`: a run once more, with its code, packages, data and command, on the hosts of today."""

from __future__ import annotations

import contextlib
import os
import time

from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.model import DEFAULT_PYTHON, Inventory, Preparing, RunPlan, interpreter
from orchestrator.phases.data import sources
from orchestrator.phases.setup import kept_lock
from orchestrator.phases.stage import code_of_a_host
from orchestrator.planning import plan
from orchestrator.ranges import fold
from orchestrator.requests import LaunchRequest
from orchestrator.run.view import replay as replayed
from orchestrator.store import RunFolder, new_run_id, runs_root
from orchestrator.store.reader import events_of
from orchestrator.sync.contents import CodeSource, folder_source, read_builtin, read_data, read_folder
from orchestrator.verbs import code, keeping
from orchestrator.verbs.asking import asking
from orchestrator.verbs.caller import Caller
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.plan import Planned

_NOTE = "a replay of run "
_OF_TODAY = {"inventory", "replay", "terminal", "notify", "metrics", "other_ports", "wait"}


def plan_again(request: LaunchRequest, caller: Caller) -> Planned:
    """Plan an earlier run once more; raise UsageError for options beside it, one for all that it lacks."""
    usual = LaunchRequest(inventory=request.inventory)
    own = sorted(set(request.__struct_fields__) - _OF_TODAY)
    if given := [name for name in own if getattr(request, name) != getattr(usual, name)]:
        what = f"--replay takes everything from its run, so that {' and '.join(given)} cannot be given, too"
        raise UsageError(what.replace("_", "-"), hint="leave that out, or launch anew")
    inventory = request.inventory
    before = find_run(request.replay, inventory, caller)
    old = before.read_plan()
    if old.hearsay:
        hint = "launch it again on the machine that launched it"
        raise UsageError(f"run {old.run} cannot be replayed from here", why=old.hearsay, hint=hint)
    first = replayed(events_of(before)).planned  # later attempts may have had fewer tasks
    seats = first.tasks if first is not None else [(str(spec.id), spec.host) for spec in old.tasks]
    today, had = list(inventory.hosts), {host for _, host in seats}
    for place, host in enumerate(today):  # with its Python, unless the inventory names another one
        if old.environment is not None and host.python == DEFAULT_PYTHON:
            today[place] = replace(host, python=interpreter(host, old.environment))
    free = sorted((host for host in today if not host.spare), key=lambda host: host.name not in had)
    hosts = tuple(host for host in today if host in free[: len(had)])
    known = {host.name for host in old.members}
    cluster, tasks, _ = plan.seat(hosts, old.command, old.recipe)
    project, lacks = _code(before, old, inventory, caller), list[str]()
    then, now = {name for name, _ in seats}, {str(spec.id) for spec in tasks}
    if then != now:
        lacks.append(f"its hosts: its tasks were {fold(sorted(then))}, and would be {fold(sorted(now))}")
    if isinstance(project, str):
        lacks.append(f"its code: {project}")
    if old.environment is not None and kept_lock(old.environment) is None:
        lock = f"{runs_root().parent}/locks/{old.environment.name}.txt"
        lacks.append(f"its packages: there is no {lock}, or a damaged one; {old.owner} launched the run")
    if old.data is not None:
        try:
            if old.data_digest not in ("", read_data(sources(old.data)).digest):
                lacks.append("its data: what [data] named is not what it was")
        except UsageError as error:
            lacks.append(f"its data: {error.what}")
    if unset := [name for name in old.secrets if name not in os.environ]:
        lacks.append(f"its secrets: {', '.join(unset)} not set on this machine")
    if lacks or isinstance(project, str):
        raise UsageError(
            f"run {old.run} cannot be had again",
            why="\n".join(lacks),
            hint="`orchestrate launch -- COMMAND` launches what is here now",
        )
    created = time.time()
    again = replace(
        old,
        run=str(new_run_id(created)),
        owner=keeping.owner(),
        created=created,
        hosts=hosts,
        cluster=cluster,
        tasks=tasks,
        spares=tuple(one for one in today if one not in hosts and (one.spare or one.name in known)),
        retired=(),
        unfit=(),
        terminal=None,
        attempt=1,
        preparing=Preparing(),
        notes=(f"{_NOTE}{old.run}", *(note for note in old.notes if not note.startswith(_NOTE))),
    )
    return again, project, ()


def _code(before: RunFolder, old: RunPlan, inventory: Inventory, caller: Caller) -> CodeSource | str | None:
    """Find the code that ran, None for worker_entry, which comes along; or return why nobody has it."""
    if not old.tree:
        return "it ended before that was read"
    if plan.is_builtin(old.command):
        return None if read_builtin().digest == old.tree else "this orchestrate has another worker_entry"
    with contextlib.suppress(UsageError):
        here = code.project(inventory, None)
        if here.read().digest == old.tree:
            return here
    copy, told = before.path / "code", before.read_code()
    if read_folder(copy).digest != old.tree:
        with asking(inventory.hosts, caller) as (fleet, silent):
            if code_of_a_host(fleet.sessions.values(), old.tree, copy) is None:
                but = f"; {fold(sorted(silent))} could not be asked" if silent else ""
                return f"neither this folder nor a host has it any more (trees/{old.tree}){but}"
    return replace(folder_source(copy), state=[told.commit, told.branch, told.diff])
