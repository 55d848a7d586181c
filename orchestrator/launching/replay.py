"""`launch --replay`: a run once more, with its code, packages, data and command, on the hosts of today."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from orchestrator.errors import HostError, UsageError
from orchestrator.fleet import Fleet
from orchestrator.launching import code, keeping
from orchestrator.launching.start import Planned
from orchestrator.model import Host, Inventory, Preparing, RunPlan, interpreter
from orchestrator.phases.data import sources
from orchestrator.phases.stage import code_of_a_host
from orchestrator.planning import environ, plan
from orchestrator.ranges import fold
from orchestrator.run.view import replay as replayed
from orchestrator.store import RunFolder, new_run_id
from orchestrator.store.known import read_lock
from orchestrator.store.reader import events_of
from orchestrator.sync import read_data, read_folder
from orchestrator.sync.contents import CodeSource, folder_source, read_builtin

Asking = Callable[[Sequence[Host]], AbstractContextManager[tuple[Fleet, Mapping[str, HostError]]]]


def plan_again(before: RunFolder, inventory: Inventory, asking: Asking) -> Planned:
    """Plan an earlier run once more; raise one UsageError for all that cannot be had again.

    `asking` connects to hosts, for code that this machine has no more.
    """
    old = before.read_plan()
    if old.hearsay:
        raise UsageError(f"run {old.run} cannot be replayed from here", why=old.hearsay)
    first = replayed(events_of(before)).planned  # later attempts may have had fewer tasks
    seats = first.tasks if first is not None else [(str(spec.id), spec.host) for spec in old.tasks]
    today, had = list(inventory.hosts), {host for _, host in seats}
    for place, host in enumerate(today):  # with its Python, unless the inventory names another one
        if old.environment is not None and host.python == Host.python:
            today[place] = dataclasses.replace(host, python=interpreter(host, old.environment))
    free = sorted((host for host in today if not host.spare), key=lambda host: host.name not in had)
    hosts = tuple(host for host in today if host in free[: len(had)])
    known = {host.name for host in old.members}
    cluster, tasks, _ = plan.seat(hosts, old.command, old.recipe)
    project, lacks = _code(before, old, inventory, asking), []
    then, now = {name for name, _ in seats}, {str(spec.id) for spec in tasks}
    if then != now:
        lacks.append(f"its hosts: its tasks were {fold(sorted(then))}, and would be {fold(sorted(now))}")
    if not old.tree:
        lacks.append("its code: it ended before that was read")
    elif project is None and not (plan.is_builtin(old.command) and read_builtin().digest == old.tree):
        lacks.append(f"its code: neither this folder nor a host has it any more (trees/{old.tree})")
    if old.environment is not None and read_lock(old.environment.name) is None:
        lacks.append(f"its packages: this machine does not have their lock {old.environment.name}")
    if old.data is not None:
        try:
            if old.data_digest not in ("", read_data(sources(old.data)).digest):
                lacks.append("its data: what [data] named is not what it was")
        except UsageError as error:
            lacks.append(f"its data: {error.what}")
    try:
        environ.values_here(old.secrets, os.environ)
    except UsageError as error:
        lacks.append(f"its secrets: {error.what}")
    if lacks:
        raise UsageError(
            f"run {old.run} cannot be had again",
            why="\n".join(lacks),
            hint="`orchestrate launch -- COMMAND` launches what is here now",
        )
    created = time.time()
    again = dataclasses.replace(
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
        attempt=1,
        preparing=Preparing(),
        notes=(f"a replay of run {old.run}", *old.notes),
    )
    return again, project, ()


def _code(before: RunFolder, old: RunPlan, inventory: Inventory, asking: Asking) -> CodeSource | None:
    """Find the code that ran: in this folder, where an earlier replay left it, or on a host."""
    if plan.is_builtin(old.command) or not old.tree:
        return None
    with contextlib.suppress(UsageError):
        here = code.project(inventory, None)
        if here.read().digest == old.tree:
            return here
    copy = before.path / "code"
    if read_folder(copy).digest != old.tree:
        with asking(inventory.hosts) as (fleet, _):
            if code_of_a_host(fleet.sessions.values(), old.tree, copy) is None:
                return None
    return folder_source(copy)
