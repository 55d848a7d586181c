"""`launch --replay`: a run once more, with its code, packages, data and command, on the hosts of today."""

from __future__ import annotations

import contextlib
import os

from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.model import DEFAULT_PYTHON, Host, Inventory, RunPlan, interpreter
from orchestrator.phases.data import sources
from orchestrator.phases.setup import kept_lock
from orchestrator.phases.stage import code_of_a_host
from orchestrator.planning import plan
from orchestrator.ranges import fold
from orchestrator.requests import LaunchRequest
from orchestrator.run.view import replay as replayed
from orchestrator.store import RunFolder, runs_root
from orchestrator.store.reader import events_of
from orchestrator.sync.contents import CodeSource, folder_source, read_builtin, read_data, read_folder
from orchestrator.verbs import Caller, code
from orchestrator.verbs.asking import asking
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.plan import Planned, plan_of

_OF_TODAY = {"inventory", "replay", "terminal", "notify", "metrics", "other_ports", "wait"}


def plan_again(request: LaunchRequest, caller: Caller, notes: tuple[str, ...] = ()) -> Planned:
    """Plan an earlier run once more; raise UsageError for options beside it, one for all that it lacks."""
    usual = LaunchRequest(inventory=request.inventory)
    own = sorted(set(request.__struct_fields__) - _OF_TODAY)
    if given := [name for name in own if getattr(request, name) != getattr(usual, name)]:
        what = f"--replay takes everything from its run, so that {' and '.join(given)} cannot be given, too"
        raise UsageError(what.replace("_", "-"), hint="leave that out, or launch anew")
    before = find_run(request.replay, request.inventory, caller)
    old, was = before.read_plan(), before.read_request()
    if old.hearsay or was is None:
        hint = "launch it again on the machine that launched it"
        why = old.hearsay or f"{before.request} cannot be read"
        raise UsageError(f"run {old.run} cannot be replayed from here", why=why, hint=hint)
    first = replayed(events_of(before)).planned  # later attempts may have had fewer tasks
    seats = first.tasks if first is not None else [(str(spec.id), spec.host) for spec in old.tasks]
    hosts = _hosts(request.inventory, old, {host for _, host in seats})
    again = replace(
        request,
        **{name: getattr(was, name) for name in own if name != "spares"},  # which are among the hosts
        inventory=replace(was.inventory, hosts=hosts, source=request.inventory.source),
        replay=None,
    )
    tasks = plan.seat(tuple(host for host in hosts if not host.spare), old.command, old.recipe)[1]
    project, lacks = _code(before, old, again, caller), list[str]()
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
    made = plan_of(again, project, old.environment, notes=(f"a replay of run {old.run}", *notes))
    return replace(made, request=again)


def _hosts(today: Inventory, old: RunPlan, had: set[str]) -> tuple[Host, ...]:
    """Return the hosts of today for a run: those that it had come first, the others it knows are spares."""
    free = sorted((host for host in today.hosts if not host.spare), key=lambda host: host.name not in had)
    train, known = free[: len(had)], {host.name for host in old.members}
    hosts = []
    for host in today.hosts:
        spare = host not in train
        if not spare or host.spare or host.name in known:
            own = old.environment is None or host.python != DEFAULT_PYTHON
            python = host.python if own or old.environment is None else interpreter(host, old.environment)
            hosts.append(replace(host, spare=spare, python=python))
    return tuple(hosts)


def _code(before: RunFolder, old: RunPlan, again: LaunchRequest, caller: Caller) -> CodeSource | str | None:
    """Find the code that ran, None for worker_entry, which comes along; or return why nobody has it."""
    if not old.tree:
        return "it ended before that was read"
    if plan.is_builtin(old.command):
        return None if read_builtin().digest == old.tree else "this orchestrate has another worker_entry"
    with contextlib.suppress(UsageError):
        here = code.project(again.inventory, again.code)
        if here.read().digest == old.tree:
            return here
    copy, told = before.path / "code", before.read_code()
    if read_folder(copy).digest != old.tree:
        with asking(again.inventory.hosts, caller) as (fleet, silent):
            if code_of_a_host(fleet.sessions.values(), old.tree, copy) is None:
                but = f"; {fold(sorted(silent))} could not be asked" if silent else ""
                return f"neither this folder nor a host has it any more (trees/{old.tree}){but}"
    source = folder_source(copy)
    state = [told.commit, told.branch, told.diff]
    return replace(source, root=replace(source.root, cwd=old.cwd), state=state)
