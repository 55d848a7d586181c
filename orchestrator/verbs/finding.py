"""Finding the run that a person means: here, or on the nodes of an inventory."""

from __future__ import annotations

import contextlib
from functools import partial

from orchestrator.errors import OrchestrateError, SeveralErrors, UsageError
from orchestrator.events import Stamped
from orchestrator.model import Inventory, Role, RunPlan
from orchestrator.names import RunId
from orchestrator.planning.takeover import Known, Telling, adopt, join
from orchestrator.run.view import View
from orchestrator.store import RunFolder, find, runs_root
from orchestrator.store.folder import decode_plan
from orchestrator.store.key import opened
from orchestrator.store.known import ambiguous, matches_run
from orchestrator.store.reader import events_of
from orchestrator.store.standing import standing
from orchestrator.text import count
from orchestrator.unbroken import unbroken
from orchestrator.verbs import Caller
from orchestrator.verbs import inventory as inventories
from orchestrator.verbs.asking import asking, key_or_none


def find_run(wanted: str | None, hosts: str | Inventory | None, caller: Caller) -> RunFolder:
    """The run's folder, made from what the nodes know when this machine does not have it.

    Without a word, and of those with one name, the newest run is meant.
    Raise UsageError when nobody knows such a run, or several are meant.
    """
    folder = find(wanted)
    path = hosts.source if isinstance(hosts, Inventory) else inventories.locate(hosts)
    if folder is not None:
        try:
            folder.read_plan()
            return folder
        except UsageError:
            if not _is_there(hosts):
                raise
            wanted = folder.run  # its nodes know its plan
    if not _is_there(hosts):
        raise _unknown(wanted, f"nor is there a {path}, whose hosts could be asked")
    inventory = hosts if isinstance(hosts, Inventory) else inventories.load(hosts, caller)
    known, silent = discover(inventory, caller)
    matching = [
        one for one in known if wanted is None or matches_run(one.plan.run, wanted) or one.plan.name == wanted
    ]
    if not matching:
        but = f", and {', '.join(silent)} could not be asked" if silent else ""
        raise _unknown(wanted, f"and the hosts of {path} know none either{but}")
    # A node may tell of runs whose ids begin with the one that is meant: the whole id means that one.
    matching = [one for one in matching if one.plan.run == wanted] or matching
    of_name = [one for one in matching if one.plan.name == wanted]
    if wanted is not None and not of_name and len(matching) > 1:
        raise ambiguous(wanted, [one.plan.run for one in matching])
    answering = tuple(host.name for host in inventory.hosts if host.name not in silent)
    # Those with our seal come first: a node may tell of a newer run, so that ours would not be the one.
    # A launch that was refused is meant by its own name only, or where there is no other.
    newest = max(of_name or matching, key=lambda one: (one.authentic, one.begun, one.plan.created))
    plan = adopt(newest, inventory, answering)
    folder = RunFolder(runs_root(), RunId(plan.run))
    unbroken(partial(folder.create, plan))
    return folder


def _is_there(hosts: str | Inventory | None) -> bool:
    return isinstance(hosts, Inventory) or inventories.is_there(hosts)


def history(folder: RunFolder, caller: Caller | None = None) -> list[Stamped]:
    """The run's events, none when they cannot be read, which is a warning for the caller."""
    try:
        return events_of(folder)
    except OrchestrateError as error:
        if caller is not None:
            caller.warn(error)
        return []


def view_of(folder: RunFolder, caller: Caller | None = None) -> View:
    """The run's state, an empty one when it cannot be read, which is a warning for the caller."""
    try:
        return standing(folder)[0]
    except OrchestrateError as error:
        if caller is not None:
            caller.warn(error)
        return View()


def discover(inventory: Inventory, caller: Caller) -> tuple[list[Known], list[str]]:
    """Ask the hosts of an inventory for their runs; return these, and the hosts that did not answer.

    What cannot be a run is left out. Raise when no host answers.
    """
    with asking(inventory.hosts, caller) as (fleet, bad):
        from orchestrator import wire

        answers = fleet.ask(wire.States(run=None))
    bad = {**bad, **answers.bad}
    if len(bad) == len(inventory.hosts):
        raise SeveralErrors(bad.values())
    key = key_or_none(caller)
    tellings: list[Telling] = []
    for host, reply in answers.good.items():
        for run in reply.runs:
            with contextlib.suppress(ValueError):  # it is cut, of another version, or none of ours
                sealed = opened(run.plan or "", key)
                plan = decode_plan(sealed.plan)
                if plan.run == run.run:
                    kept = run.keeper is not None and run.keeper.alive
                    tellings.append(Telling(host, plan, sealed.authentic, bool(run.tasks) or kept))
        if reply.more:
            caller.tell(
                f"{host}: {count(reply.more, 'older run')} left out: it keeps too many (`orchestrate clean`)"
            )
    return join(tellings), sorted(bad)


def _unknown(wanted: str | None, where: str) -> UsageError:
    what = "there is no run yet" if wanted is None else f"there is no run {wanted!r}"
    hint = "`orchestrate launch` starts one" if wanted is None else "`orchestrate runs` lists what is known"
    return UsageError(what, why=f"none in {runs_root()}, {where}", hint=hint)


def source_of(plan: RunPlan, wanted: str | None) -> str:
    """The host to pull from: named, or of a task; without either the chief's, who writes checkpoints."""
    if wanted is None:
        order = (Role.CHIEF, Role.WORKER)
        tasks = [spec for role in order for spec in plan.tasks if spec.id.role is role]
        if not (specs := tasks or list(plan.tasks)):
            raise UsageError(f"run {plan.run} has no task", why="its plan names none")
        return specs[0].host
    for spec in plan.tasks:
        if wanted in (str(spec.id), spec.id.slug, spec.host):
            return spec.host
    known = ", ".join(f"{spec.id} ({spec.host})" for spec in plan.tasks)
    raise UsageError(
        f"run {plan.run} has no {wanted}", why=f"it has {known}", hint="`--from worker/0`, or a host"
    )
