"""`launch --replay`: a run again, with its code, packages, data, and command, on the current hosts."""

import contextlib
import os
from collections.abc import Sequence

from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.model import Host, Inventory, Recipe, RunPlan
from orchestrator.phases.data import sources
from orchestrator.phases.setup import kept_lock
from orchestrator.phases.stage import code_of_a_host
from orchestrator.planning.commands import is_builtin
from orchestrator.planning.plan import place_tasks
from orchestrator.ranges import fold
from orchestrator.requests import LaunchRequest
from orchestrator.run.view import replay as replayed
from orchestrator.store import RunFolder, runs_root
from orchestrator.store.reader import events_of
from orchestrator.sync.contents import CodeSource, folder_source, read_builtin, read_data, read_folder
from orchestrator.verbs import Caller, code
from orchestrator.verbs.asking import asking
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.reading import Reading, facts_of

_OF_TODAY = {"inventory", "replay", "continues", "terminal", "notify", "other_ports", "wait"}


def read_again(request: LaunchRequest, caller: Caller) -> Reading:
    """Read an earlier run; raise one UsageError for conflicting options, or for all that is missing."""
    usual = LaunchRequest(inventory=request.inventory)
    own = sorted(set(request.__struct_fields__) - _OF_TODAY)
    if given := [name for name in own if getattr(request, name) != getattr(usual, name)]:
        what = f"--replay takes everything from its run, so {' and '.join(given)} cannot be combined with it"
        raise UsageError(what.replace("_", "-"), hint="omit that, or launch a new run")
    before = find_run(request.replay, request.inventory, caller)
    old, was = before.read_plan(), before.read_request()
    if old.untrusted or was is None:
        hint = "launch it again on the machine that launched it"
        why = old.untrusted or f"{before.request} cannot be read"
        raise UsageError(f"run {old.run} cannot be replayed from here", why=why, hint=hint)
    first = replayed(events_of(before)).planned  # later attempts may have had fewer tasks
    seats = first.tasks if first is not None else [(str(spec.id), spec.host) for spec in old.tasks]
    hosts, tasks = _hosts(request.inventory, old, seats, was)
    again = replace(
        request,
        **{name: getattr(was, name) for name in own if name != "spares"},  # which are among the hosts
        inventory=replace(was.inventory, hosts=hosts, source=request.inventory.source),
        replay=None,
    )
    project, lacks = _code(before, old, again, caller), list[str]()
    if (then := {name for name, _ in seats}) != tasks:
        lacks.append(f"its hosts: its tasks were {fold(sorted(then))}, and would be {fold(sorted(tasks))}")
    if isinstance(project, str):
        lacks.append(f"its code: {project}")
    if old.environment is not None and kept_lock(old.environment) is None:
        lock = f"{runs_root().parent}/locks/{old.environment.name}.txt"
        lacks.append(f"its packages: there is no {lock}, or a damaged one; {old.owner} launched the run")
    if old.data is not None:
        try:
            if old.data_digest not in ("", read_data(sources(old.data)).digest):
                lacks.append("its data: the files of [data] have changed")
        except UsageError as error:
            lacks.append(f"its data: {error.what}")
    if unset := [name for name in old.secrets if name not in os.environ]:
        lacks.append(f"its secrets: {', '.join(unset)} not set on this machine")
    if lacks or isinstance(project, str):
        raise UsageError(
            f"run {old.run} cannot be reproduced",
            why="\n".join(lacks),
            hint="`orchestrate launch -- COMMAND` launches what is here now",
        )
    facts = facts_of(again, code.look(again.inventory, project))
    without = f", without the files of run {old.resumed.run} that it continued" if old.resumed else ""
    notes = (f"a replay of run {old.run}{without}",)
    return again, replace(facts, environment=old.environment, notes=notes), project


def _hosts(
    today: Inventory, old: RunPlan, seats: Sequence[tuple[str, str]], was: LaunchRequest
) -> tuple[tuple[Host, ...], set[str]]:
    """Return the current hosts with the programs that their tasks ran, and these tasks.

    `seats` are the run's tasks, each with its host. Their hosts come first; the run's other hosts are spares.
    """
    had, members = {name for _, name in seats}, {host.name for host in old.members}
    free = sorted((host for host in today.hosts if not host.spare), key=lambda host: host.name not in had)
    train = tuple(host for host in today.hosts if host in free[: len(had)])
    tasks = {str(spec.id): spec.host for spec in place_tasks(train, (), Recipe())[1]}
    programs = {host.name: host for host in was.inventory.hosts}
    ran = {tasks[task]: programs[name] for task, name in seats if task in tasks and name in programs}
    hosts = [
        replace(host, spare=host not in train)
        for host in today.hosts
        if host in train or host.spare or host.name in members
    ]
    return tuple(
        replace(host, command=ran[host.name].command, args=ran[host.name].args) if host.name in ran else host
        for host in hosts
    ), set(tasks)


def _code(before: RunFolder, old: RunPlan, again: LaunchRequest, caller: Caller) -> CodeSource | str | None:
    """Return the code that ran, None for the bundled worker_entry, or the reason why it is unavailable."""
    if not old.tree:
        return "the run ended before its code was read"
    if is_builtin(old.command):
        return None if read_builtin().digest == old.tree else "the bundled program is another version"
    with contextlib.suppress(UsageError):
        here = code.project(again.inventory, again.code)
        if here.read().digest == old.tree:
            return here
    copy, record = before.path / "code", before.read_code()
    if read_folder(copy).digest != old.tree:
        with asking(again.inventory.hosts, caller) as (fleet, silent):
            if code_of_a_host(fleet.sessions.values(), old.tree, copy) is None:
                but = f"; {fold(sorted(silent))} could not be reached" if silent else ""
                return f"neither this folder nor a host has it any more (trees/{old.tree}){but}"
    source = folder_source(copy)
    state = [record.commit, record.branch, record.diff]
    return replace(source, root=replace(source.root, cwd=old.cwd), state=state)
