"""Finding the run that a person means: here, or on the nodes of an inventory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator import config
from orchestrator.cli.logins import logins
from orchestrator.errors import HostError, SeveralErrors, UsageError
from orchestrator.events import Outcome, RunEnded
from orchestrator.model import Host, Inventory, RunPlan
from orchestrator.store import RunFolder, find, runs, runs_root
from orchestrator.store.folder import ambiguous, decode_plan, matches_run, named
from orchestrator.store.reader import events_of

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets


def find_run(wanted: str | None, hosts: str | None, *, to_stop: bool = False) -> RunFolder:
    """The run's folder, made from what the nodes know when this machine does not have it.

    Without a word, and of those with one name, the newest run is meant, or when that is over the newest
    that goes on; that is said.
    `to_stop`: never another one than the newest that was started. Whoever wants to be sure that it is
    over must not end one that was launched before it.
    Raise UsageError when nobody knows such a run, or several are meant.
    """
    folder = _newest(runs(), to_stop=to_stop) if wanted is None else _meant(wanted, to_stop=to_stop)
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
    known, silent = discover(inventory)
    matching = [
        one for one in known if wanted is None or matches_run(one.plan.run, wanted) or one.plan.name == wanted
    ]
    if not matching:
        but = f", and {', '.join(silent)} could not be asked" if silent else ""
        raise _unknown(wanted, f"and the hosts of {path} know none either{but}")
    named = [one for one in matching if one.plan.name == wanted]
    if wanted is not None and not named and len(matching) > 1:
        raise ambiguous(wanted, [one.plan.run for one in matching])
    plan = _choose(named or matching, to_stop=to_stop)
    folder = RunFolder(runs_root() / plan.run)
    folder.create(with_local_hosts(plan, inventory))
    return folder


def _meant(wanted: str, *, to_stop: bool) -> RunFolder | None:
    found = find(wanted)
    if found is None or matches_run(found.run, wanted):
        return found
    return _newest(named(wanted), to_stop=to_stop)


def _newest(candidates: Iterable[RunFolder], *, to_stop: bool) -> RunFolder | None:
    found = list(candidates)
    newest = found[0] if found else None
    end = None if newest is None else _end(newest)
    if newest is None or end is None or (to_stop and end.outcome is not Outcome.CLUSTER):
        return newest
    going = next((folder for folder in found if folder.has_keeper()), None)
    if going is None or going == newest:
        return newest
    _say_which(going.run, newest.run)
    return going


def _choose(known: Sequence[Known], *, to_stop: bool) -> RunPlan:
    """The same among runs that the nodes told of: those that were refused are known there too."""
    by_age = sorted(known, key=lambda one: one.plan.created, reverse=True)
    newest = by_age[0]
    going = next((one for one in by_age if one.goes_on), newest)
    if going is newest or (to_stop and newest.started):
        return newest.plan
    _say_which(going.plan.run, newest.plan.run)
    return going.plan


def _say_which(run: str, newest: str) -> None:
    print(f"run {run}, which goes on; the newest, {newest}, is over", file=sys.stderr)


def is_over(folder: RunFolder) -> bool:
    """Whether the run's end has been told."""
    return _end(folder) is not None


def _end(folder: RunFolder) -> RunEnded | None:
    events = [stamped.event for stamped in events_of(folder)]
    return next((event for event in reversed(events) if isinstance(event, RunEnded)), None)


@dataclass(frozen=True)
class Known:
    """A run, as the nodes tell of it."""

    plan: RunPlan
    goes_on: bool  # somewhere it has a keeper or a living task
    started: bool  # somewhere it has a task, ended or not


def discover(inventory: Inventory) -> tuple[list[Known], list[str]]:
    """The plans of all runs that the nodes of an inventory know, and the hosts that did not answer.

    Raise when none answers.
    """
    from orchestrator.cli.apart import apart

    asked = logins(inventory.hosts)
    found = msgspec.json.decode(apart(lambda: _ask(inventory, asked)), type=_Found)
    if len(found.bad) == len(inventory.hosts):
        raise SeveralErrors(
            HostError(host, what, kind=kind, why=why, hint=hint) for host, what, kind, why, hint in found.bad
        )
    runs: dict[str, Known] = {}
    for run, text, goes_on, started in found.plans:
        with contextlib.suppress(msgspec.ValidationError, msgspec.DecodeError):  # of another version, or cut
            told = Known(decode_plan(text.encode()), goes_on, started)
            runs[run] = _joined(runs[run], told) if run in runs else told
    return list(runs.values()), sorted(bad[0] for bad in found.bad)


def _joined(one: Known, other: Known) -> Known:
    """What two hosts tell of a run."""
    plan = max(one.plan, other.plan, key=lambda plan: plan.attempt)  # a lost host has an older one
    return Known(plan, one.goes_on or other.goes_on, one.started or other.started)


@dataclass(frozen=True)
class _Found:
    plans: tuple[tuple[str, str, bool, bool], ...]  # (run, its plan on a node, goes on, has tasks there)
    bad: tuple[tuple[str, str, str, str, str], ...]  # (host, what, kind, why, hint)


def _ask(inventory: Inventory, asked: Secrets | None) -> bytes:
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet

    fleet = Fleet(connectors(asked), lambda _frame: None)
    try:
        bad = fleet.connect(inventory.hosts)
        answers = fleet.ask("states", lambda _: {"run": None})
    finally:
        fleet.close()
    runs = [run for reply in answers.good.values() for run in reply.result["runs"]]
    errors = {**bad, **answers.bad}.values()
    found = _Found(
        tuple((run["run"], run["plan"], _goes_on(run), bool(run["tasks"])) for run in runs if run["plan"]),
        tuple((error.host, error.what, error.kind, error.why, error.hint) for error in errors),
    )
    return msgspec.json.encode(found)


def _goes_on(run: dict[str, Any]) -> bool:
    return bool(run["keeper"] and run["keeper"]["alive"]) or any(task["alive"] for task in run["tasks"])


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

    return dataclasses.replace(
        plan,
        hosts=tuple(map(here, plan.hosts)),
        spares=tuple(map(here, plan.spares)),
        retired=tuple(map(here, plan.retired)),
    )


def _unknown(wanted: str | None, where: str) -> UsageError:
    what = "there is no run yet" if wanted is None else f"there is no run {wanted!r}"
    hint = "orchestrate launch starts one" if wanted is None else "orchestrate runs lists what is known"
    return UsageError(what, why=f"none in {runs_root()}, {where}", hint=hint)
