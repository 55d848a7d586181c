"""Finding the run that a user means: here, or on the nodes of an inventory."""

import contextlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

from orchestrator.errors import OrchestrateError, SeveralErrors, UsageError
from orchestrator.model import Inventory, RunPlan
from orchestrator.names import RunId
from orchestrator.nearest import nearest
from orchestrator.planning.takeover import KnownRun, RunReport, adopt, join
from orchestrator.run.view import View
from orchestrator.store import RunFolder, find, runs_root
from orchestrator.store.folder import decode_plan
from orchestrator.store.key import opened
from orchestrator.store.known import ambiguous, known_names, matches_run, named
from orchestrator.store.standing import standing
from orchestrator.text import count
from orchestrator.unbroken import unbroken
from orchestrator.verbs import Caller
from orchestrator.verbs import inventory as inventories
from orchestrator.verbs.asking import asking, key_or_none


def find_run(query: str | None, hosts: str | Inventory | None, caller: Caller) -> RunFolder:
    """Return the run's folder, created from the nodes' information if this machine does not have it.

    Without a query it is the newest run; of several runs with one name, the newest. Raise UsageError if no
    run matches, or several do.
    """
    folder = find(query)
    path = hosts.source if isinstance(hosts, Inventory) else inventories.locate(hosts)
    if folder is not None:
        try:
            folder.read_plan()
            return folder
        except UsageError:
            if not _is_there(hosts):
                raise
            query = folder.run  # its nodes have its plan
    if not _is_there(hosts):
        raise unknown(query, f"and there is no {path} with hosts to ask")
    inventory = hosts if isinstance(hosts, Inventory) else inventories.load(hosts, caller)
    runs_there, silent = discover(inventory, caller)
    matching = [
        run
        for run in runs_there
        if query is None or matches_run(run.plan.run, query) or run.plan.name == query
    ]
    if not matching:
        but = f", and {', '.join(silent)} could not be reached" if silent else ""
        raise unknown(query, f"and the hosts of {path} have none either{but}")
    # A node may report other runs whose ids begin with a full id.
    matching = [run for run in matching if run.plan.run == query] or matching
    of_name = [run for run in matching if run.plan.name == query]
    if query is not None and not of_name and len(matching) > 1:
        raise ambiguous(query, [run.plan.run for run in matching])
    answering = tuple(host.name for host in inventory.hosts if host.name not in silent)
    # Those with our seal come first: a node could report a newer run, to hide ours.
    # A refused launch is selected only by its own name, or if there is no other.
    newest = max(of_name or matching, key=lambda run: (run.authentic, run.begun, run.plan.run))
    plan = adopt(newest, inventory, answering)
    folder = RunFolder(runs_root(), RunId(plan.run))
    unbroken(partial(folder.create, plan))
    return folder


def find_runs(queries: Sequence[str | None], hosts: str | None, caller: Caller) -> list[RunFolder]:
    """Return the folders of several runs, each once; without queries, the newest run's.

    A pattern such as `lr-*` means all runs of this machine with such names, the oldest first.
    Raise UsageError.
    """
    folders: dict[RunFolder, None] = {}
    for word in queries or [None]:
        several = named(word, match=fnmatchcase)[::-1] if word and set(word) & {*"*?["} else []
        folders |= dict.fromkeys(several or [find_run(word, hosts, caller)])
    return list(folders)


def _is_there(hosts: str | Inventory | None) -> bool:
    return isinstance(hosts, Inventory) or inventories.is_there(hosts)


def view_of(folder: RunFolder, caller: Caller) -> tuple[View, int]:
    """Return the run's state and the size of its events; empty if damaged, with a warning for the caller."""
    try:
        return standing(folder)
    except OrchestrateError as error:
        caller.warn(error)
        return View(), 0


def discover(inventory: Inventory, caller: Caller) -> tuple[list[KnownRun], list[str]]:
    """Ask the hosts of an inventory for their runs; return these, and the hosts that did not reply.

    Records that are not a run are skipped. Raise if no host replies.
    """
    with asking(inventory.hosts, caller) as (fleet, bad):
        from orchestrator import wire

        answers = fleet.ask(wire.States(run=None))
    if len(bad := bad | answers.bad) == len(inventory.hosts):
        raise SeveralErrors(bad.values())
    key = key_or_none(caller)
    reports: list[RunReport] = []
    for host, reply in answers.good.items():
        for run in reply.runs:
            with contextlib.suppress(ValueError):  # truncated, of another version, or not ours
                sealed = opened(run.plan or "", key)
                plan = decode_plan(sealed.plan)
                if plan.run == run.run:
                    kept = run.keeper is not None and run.keeper.alive
                    reports.append(RunReport(host, plan, sealed.authentic, bool(run.tasks) or kept))
        if reply.more:
            caller.tell(
                f"{host}: {count(reply.more, 'older run')} skipped: there are too many (`orchestrate clean`)"
            )
    return join(reports), sorted(bad)


def unknown(query: str | None, where: str) -> UsageError:
    what = "there is no run yet" if query is None else f"there is no run {query!r}"
    hint = "`orchestrate launch` starts one" if query is None else "`orchestrate runs` lists all runs"
    if query is not None and (near := nearest(query, known_names(), {})):
        hint = f"write {near}; {hint}"
    return UsageError(what, why=f"none in {runs_root()}, {where}", hint=hint)


def source_of(plan: RunPlan, source: str | None) -> str:
    """Return the host to pull from: `source`, or its task's; by default the chief's, with the checkpoints."""
    if source is None:
        if not plan.tasks:
            raise UsageError(f"run {plan.run} has no tasks", why="its plan lists none")
        return plan.leader.host
    for spec in plan.tasks:
        if source in (str(spec.id), spec.id.slug, spec.host):
            return spec.host
    choices = ", ".join(f"{spec.id} ({spec.host})" for spec in plan.tasks)
    raise UsageError(
        f"run {plan.run} has no {source}", why=f"it has {choices}", hint="use `--from worker/0`, or a host"
    )
