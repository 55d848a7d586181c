"""Takeover: the plan of a run from the nodes' reports, limited to hosts in our own inventory. Pure.

A plan stored on a node is untrusted input. It is ours if it bears our seal and no responding host
contradicts it; any other plan serves to inspect the run and to end it, and nothing is started from it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from orchestrator.errors import ClusterError, UsageError, expect
from orchestrator.model import (
    MAX_PORT,
    Admission,
    Host,
    Inventory,
    Preparing,
    Recipe,
    Restarts,
    RunPlan,
    TaskSpec,
)
from orchestrator.names import AttemptName, RunId
from orchestrator.ranges import grouped
from orchestrator.text import cut, plain
from orchestrator.value import Value

# What our own plan may say about a host: where the run is on it, and what it runs. How we reach it stays as
# in the inventory: another machine's values (a key, an ssh_config) name files of that machine, and a
# node's invention would be opened and executed here.
PLANNED = (
    *("python", "workdir", "state", "task_port", "tasks", "role", "devices", "spare", "env"),
    *("command", "args", "container", "container_args", "container_engine"),
)

FIRST = 1  # the attempt that a launch begins with
_MOST_SECONDS = 365 * 24 * 3600.0
_MOST_TASKS = 65_536
_SHOWN = 300  # characters of a node's text
_MOST_SHOWN = 5  # hosts that differ

FOLLOWED = "followed and stopped from here, never started again"
NO_SEAL = "its plan does not have the seal of this machine's key"


class RunReport(Value):
    """One host's report on one run."""

    host: str
    plan: RunPlan
    authentic: bool  # the plan was written by a holder of our key
    begun: bool = True  # a task of it was started there, or it has a keeper


class KnownRun(Value):
    """A run as its nodes report it."""

    plan: RunPlan
    authentic: bool
    reporters: tuple[str, ...]  # the hosts that report it
    contradiction: str = ""  # two contradictory statements about it
    begun: bool = True


def join(reports: Iterable[RunReport]) -> list[KnownRun]:
    """Return the runs, each merged from all reports on it; hosts outside its plan do not count."""
    within = (report for report in reports if report.host in {host.name for host in report.plan.members})
    return [_joined(several) for several in grouped((report.plan.run, report) for report in within).values()]


def _joined(several: Sequence[RunReport]) -> KnownRun:
    """Prefer the newest plan with our seal: a node may keep an old one, but cannot create one."""
    authentic = [report for report in several if report.authentic]
    counting = authentic or several
    # Of an attempt, the plan from before its code was sent is older.
    newest = max(counting, key=lambda report: (report.plan.attempt, bool(report.plan.tree)))
    # Hosts that are not in the newest plan are ignored.
    inside = {host.name for host in newest.plan.members}
    relevant = [report for report in several if report.host in inside]
    other = next((report for report in several if _core(report.plan) != _core(newest.plan)), None)
    contradiction = ""
    if other is not None and not authentic:
        differing = [name for name, value in _core(newest.plan).items() if _core(other.plan)[name] != value]
        contradiction = f"{newest.host} and {other.host} report different {', '.join(differing)}"
    reporters = tuple(sorted({report.host for report in relevant}))
    return KnownRun(
        newest.plan, newest.authentic, reporters, contradiction, any(report.begun for report in several)
    )


def _core(plan: RunPlan) -> dict[str, object]:
    """Return what is the same in every plan of a run."""
    return {
        "owners": plan.owner,
        "times of launch": plan.created,
        "names": plan.name,
        "commands": plan.command,
        "hosts": frozenset((host.name, host.address) for host in plan.members),
    }


def check(plan: RunPlan) -> None:
    """Raise ValueError for a valid structure that is not a plan of ours: a node may have invented it."""
    hosts, tasks = plan.members, plan.tasks
    names = [host.name for host in hosts]
    ports = [*(host.task_port for host in hosts), *(spec.port for spec in tasks)]
    ports += [host.port for host in hosts if host.port is not None]
    seconds = (plan.grace, plan.failure_grace, plan.lifeline, plan.hang_timeout, plan.keep_warm)
    ids = {spec.id for spec in tasks if 0 <= spec.id.index < _MOST_TASKS}
    RunId(plan.run)
    RunId(plan.folder)
    expect(re.fullmatch("(?:[0-9a-f]{32})?", plan.tree), "its code has no digest")
    expect(0 < plan.attempt < 1_000_000 and plan.restarts.most >= 0, "it counts its attempts wrong")
    expect(0 <= plan.created < 2**40, "its launch time is unknown")
    expect(
        all(0 <= value <= _MOST_SECONDS for value in (*seconds, plan.restarts.host_timeout)),
        "one of its times is out of range",
    )
    expect(all(0 < port <= MAX_PORT for port in ports), "a port is out of range")
    reachable = all(host.name and host.address and host.ssh and host.ssh[0] != "-" for host in hosts)
    expect(reachable, "a host cannot be reached by any name")
    expect(all(host.tasks > 0 for host in hosts), "a host has no tasks")
    expect(len(set(names)) == len(names), "a host appears twice")
    on_hosts = {spec.host for spec in tasks} == {host.name for host in plan.hosts}
    expect(on_hosts, "its tasks are on other hosts than it has")
    expect(0 < len(tasks) == len(ids) <= _MOST_TASKS, "its tasks are not distinct")
    expect(plan.untrusted or all(spec.argv for spec in tasks), "a task has no command")
    expect(plan.preparing.stands_in.keys() <= set(names), "it prepares hosts that are not in it")


def adopt(run: KnownRun, inventory: Inventory, answering: Collection[str]) -> RunPlan:
    """Return the plan of a run that is taken over, on hosts of the inventory, reached as described there.

    `answering` are the hosts that replied. Raise UsageError if the inventory lacks a host of the plan,
    ClusterError if the hosts contradict each other.
    """
    plan, ours = run.plan, {host.name: host for host in inventory.hosts}
    if run.contradiction:
        raise ClusterError(
            f"the hosts' information about run {plan.run} is contradictory",
            why=cut(plain(run.contradiction), _SHOWN),
            hint=f"`orchestrate stop {plan.run}` on the machine that launched it ends it; see what those "
            "hosts keep of it, in runs/ of their state folders",
        )
    differing = []  # which users have to fix; spares that are not ours are dropped
    for host in (*plan.hosts, *plan.retired):
        local = ours.get(host.name)
        if local is None:
            differing.append(f"{host.name} is not in it")
        elif local.address != host.address:
            what = f"{host.name} has the address {local.address} there, {host.address} in the plan"
            differing.append(what)
    if differing := [cut(plain(difference), _SHOWN) for difference in differing]:
        more = len(differing) - _MOST_SHOWN
        raise UsageError(
            f"run {plan.run} cannot be taken over with {inventory.source}",
            why="; ".join(differing[:_MOST_SHOWN]) + (f"; and {more} more" if more > 0 else ""),
            hint=f"`orchestrate tail {plan.run} --hosts FILE`, with the hosts.toml that it was launched with",
        )
    # A host with tasks that replies but has no record of the run: an old plan may have been replayed.
    unheard = [host.name for host in plan.hosts if host.name in answering and host.name not in run.reporters]
    reason = "" if run.authentic else NO_SEAL
    if run.authentic and unheard:
        reason = f"{', '.join(unheard)} {'has' if len(unheard) == 1 else 'have'} no record of it"
    return _untrusted(plan, ours, reason) if reason else _vouched(plan, ours)


def _vouched(plan: RunPlan, ours: Mapping[str, Host]) -> RunPlan:
    """Return our own plan, with its hosts reached as this machine reaches them."""

    def here(hosts: Iterable[Host]) -> tuple[Host, ...]:
        return tuple(
            replace(ours[host.name], **{field: getattr(host, field) for field in PLANNED})
            for host in hosts
            if host.name in ours and ours[host.name].address == host.address
        )

    return replace(
        plan, hosts=here(plan.hosts), spares=here(plan.spares), retired=here(plan.retired), untrusted=""
    )


def _untrusted(plan: RunPlan, ours: Mapping[str, Host], reason: str) -> RunPlan:
    """Return what following, pulling and ending need, on hosts as in the inventory.

    Nothing in it can be executed, and nothing in this machine's environment is named.
    """
    notes = (f"{FOLLOWED}: {reason} (docs/security.md)",)
    return replace(
        plan,
        hosts=tuple(ours[host.name] for host in plan.hosts),
        spares=(),
        retired=tuple(ours[host.name] for host in plan.retired),
        tasks=tuple(TaskSpec(spec.id, spec.host, spec.port, (), {}) for spec in plan.tasks),
        recipe=Recipe(),
        restarts=Restarts(host_timeout=plan.restarts.host_timeout),
        admission=Admission(),
        preparing=Preparing(),
        secrets=(),
        unfit=(),
        notes=notes,
        untrusted=reason,
    )


def speaks_for(plan: RunPlan, host: str, attempt: str, task: str) -> bool:
    """Return True if a host may report on a task: for attempts of this plan, it must be the task's host.

    Hosts that were replaced since may still have what an earlier attempt or a validation started.
    """
    number = AttemptName(attempt).number
    if number is None or number < plan.attempt:
        return True
    if not plan.untrusted and number > max(plan.attempt, FIRST + plan.restarts.most):
        return False
    return any(str(spec.id) == task and spec.host == host for spec in plan.tasks)
