"""Finding the run that a person means: here, or on the nodes of an inventory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from orchestrator import config
from orchestrator.cli.logins import logins
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.model import Host, Inventory, RunPlan
from orchestrator.store import RunFolder, find, runs_root
from orchestrator.store.folder import ambiguous, decode_plan, matches_run


def find_run(wanted: str | None, hosts: str | None) -> RunFolder:
    """The run's folder, made from what the nodes know when this machine does not have it.

    Raise UsageError when nobody knows such a run, or several are meant.
    """
    folder = find(wanted)
    path = Path(hosts or "hosts.toml")
    if folder is not None:
        try:
            folder.read_plan()
        except UsageError:
            if not path.exists():
                raise
            wanted = folder.run  # its nodes know its plan
        else:
            return folder
    if not path.exists():
        raise _unknown(wanted, f"nor is there a {path}, whose hosts could be asked")
    inventory = config.load(path)
    plans, silent = discover(inventory)
    matching = [
        plan for plan in plans if wanted is None or matches_run(plan.run, wanted) or plan.name == wanted
    ]
    if not matching:
        but = f", and {', '.join(silent)} could not be asked" if silent else ""
        raise _unknown(wanted, f"and the hosts of {path} know none either{but}")
    plan = max(matching, key=lambda plan: plan.created)
    if wanted is not None and plan.name != wanted and len(matching) > 1:
        raise ambiguous(wanted, [plan.run for plan in matching])
    folder = RunFolder(runs_root() / plan.run)
    folder.create(with_local_hosts(plan, inventory))
    return folder


def discover(inventory: Inventory) -> tuple[list[RunPlan], list[str]]:
    """The plans of all runs that the nodes of an inventory know, and the hosts that did not answer.

    Raise when none answers.
    """
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet

    fleet = Fleet(connectors(logins(inventory.hosts)), lambda _frame: None)
    try:
        bad = fleet.connect(inventory.hosts)
        if not fleet.sessions:
            raise SeveralErrors(bad.values())
        answers = fleet.ask("states", lambda _: {"run": None})
    finally:
        fleet.close()
    plans: dict[str, RunPlan] = {}
    for reply in answers.good.values():
        for run in reply.result["runs"]:
            with contextlib.suppress(
                msgspec.ValidationError, msgspec.DecodeError
            ):  # of another version, or cut
                if run["plan"]:
                    plans[run["run"]] = decode_plan(run["plan"].encode())
    return list(plans.values()), sorted({*bad, *answers.bad})


def with_local_hosts(plan: RunPlan, inventory: Inventory) -> RunPlan:
    """The plan, reached through this machine's inventory: another one's key files are not ours."""
    import dataclasses

    ours = {host.name: host for host in inventory.hosts}

    def here(host: Host) -> Host:
        local = ours.get(host.name)
        if local is None:
            return host
        return dataclasses.replace(
            host, ssh=local.ssh, user=local.user, port=local.port, identity=local.identity
        )

    return dataclasses.replace(plan, hosts=tuple(here(host) for host in plan.hosts))


def _unknown(wanted: str | None, where: str) -> UsageError:
    what = "there is no run yet" if wanted is None else f"there is no run {wanted!r}"
    hint = "orchestrate launch starts one" if wanted is None else "orchestrate runs lists what is known"
    return UsageError(what, why=f"none in {runs_root()}, {where}", hint=hint)
