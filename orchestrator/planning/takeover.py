"""Take-over: the word of nodes made into a plan that leads to our own hosts alone. Pure.

A plan that was kept on a node is input from a stranger. It is ours when it bears our seal and no host that
answers contradicts it; any other one serves to look at the run and to end it, and nothing is started by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
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

# What a plan of our own may say of a host: where on it the run lies, and what it runs. All else is how we
# reach it, and stays as the inventory has it: what another machine had there (a key, an ssh_config) names
# files of that machine, and what a node made of it would be opened and executed here.
PLANNED = ("python", "workdir", "state", "task_port", "tasks", "role", "devices", "spare", "env")

FIRST = 1  # the attempt a launch begins with
_MOST_SECONDS = 365 * 24 * 3600.0
_MOST_TASKS = 65_536
_SHOWN = 300  # characters of what a node says
_MOST_SHOWN = 5  # hosts that differ

FOLLOWED = "followed and stopped from here, never started again"
NO_SEAL = "its plan does not bear the seal of this machine's key"


class Telling(Struct, frozen=True):
    """One host's word on one run."""

    host: str
    plan: RunPlan
    authentic: bool  # the plan is one that a holder of our key has written
    begun: bool = True  # a task of it was started there, or somebody keeps it


class Known(Struct, frozen=True):
    """A run, as the nodes tell of it."""

    plan: RunPlan
    authentic: bool
    tellers: tuple[str, ...]  # the hosts that tell of it
    contradiction: str = ""  # what two of them tell of it cannot both be true
    begun: bool = True


def join(tellings: Iterable[Telling]) -> list[Known]:
    """The runs, each from all that tell of it; what a host tells of a run without it does not count."""
    within = (one for one in tellings if one.host in {host.name for host in one.plan.members})
    return [_joined(several) for several in grouped((one.plan.run, one) for one in within).values()]


def _joined(several: Sequence[Telling]) -> Known:
    """A plan with our seal counts, the newest of them: a node may keep an old one, and cannot make one."""
    authentic = [one for one in several if one.authentic]
    counting = authentic or several
    # Of an attempt, the plan from before its code was sent is older.
    newest = max(counting, key=lambda one: (one.plan.attempt, bool(one.plan.tree)))
    # Hosts that the newest plan does not have may tell what they like.
    inside = {host.name for host in newest.plan.members}
    heard = [one for one in several if one.host in inside]
    other = next((one for one in several if _core(one.plan) != _core(newest.plan)), None)
    contradiction = ""
    if other is not None and not authentic:
        differing = [name for name, value in _core(newest.plan).items() if _core(other.plan)[name] != value]
        contradiction = f"{newest.host} and {other.host} tell of different {', '.join(differing)}"
    tellers = tuple(sorted({one.host for one in heard}))
    return Known(newest.plan, newest.authentic, tellers, contradiction, any(one.begun for one in several))


def _core(plan: RunPlan) -> dict[str, object]:
    """Return what stays the same in every plan of a run."""
    return {
        "owners": plan.owner,
        "times of launch": plan.created,
        "names": plan.name,
        "commands": plan.command,
        "hosts": frozenset((host.name, host.address) for host in plan.members),
    }


def check(plan: RunPlan) -> None:
    """Raise ValueError for what fits the types and is no plan of ours: a node may have made it up."""
    hosts, tasks = plan.members, plan.tasks
    names = [host.name for host in hosts]
    ports = [*(host.task_port for host in hosts), *(spec.port for spec in tasks)]
    ports += [host.port for host in hosts if host.port is not None]
    seconds = (plan.grace, plan.failure_grace, plan.lifeline, plan.hang_timeout, plan.restarts.host_timeout)
    ids = {spec.id for spec in tasks if 0 <= spec.id.index < _MOST_TASKS}
    RunId(plan.run)
    expect(re.fullmatch("(?:[0-9a-f]{32})?", plan.tree), "its code has no digest")
    expect(0 < plan.attempt < 1_000_000 and plan.restarts.most >= 0, "it counts its attempts wrong")
    expect(0 <= plan.created < 2**40, "nobody knows when it was launched")
    expect(all(0 <= value <= _MOST_SECONDS for value in seconds), "one of its times is out of range")
    expect(all(0 < port <= MAX_PORT for port in ports), "a port is out of range")
    reachable = all(one.name and one.address and one.ssh and one.ssh[0] != "-" for one in hosts)
    expect(reachable, "a host cannot be reached by any name")
    expect(all(host.tasks > 0 for host in hosts), "a host has no tasks")
    expect(len(set(names)) == len(names), "a host stands twice in it")
    on_hosts = {spec.host for spec in tasks} == {host.name for host in plan.hosts}
    expect(on_hosts, "its tasks are on other hosts than it has")
    expect(0 < len(tasks) == len(ids) <= _MOST_TASKS, "its tasks are not told apart")
    expect(plan.hearsay or all(spec.argv for spec in tasks), "a task has no command")
    expect(plan.preparing.stands_in.keys() <= set(names), "it prepares hosts that it has not")


def adopt(known: Known, inventory: Inventory, answering: Collection[str]) -> RunPlan:
    """The plan of a run that is taken over, on hosts of the inventory, reached as the inventory says.

    `answering` are the hosts that could be asked. Raise UsageError when the inventory does not hold every
    host of the plan, ClusterError when the hosts contradict each other.
    """
    plan, ours = known.plan, {host.name: host for host in inventory.hosts}
    if known.contradiction:
        raise ClusterError(
            f"what the hosts tell of run {plan.run} cannot all be true",
            why=cut(plain(known.contradiction), _SHOWN),
            hint=f"`orchestrate stop {plan.run}` on the machine that launched it ends it; see what those "
            "hosts keep of it, in runs/ of their state folders",
        )
    if differing := [cut(plain(words), _SHOWN) for words in _differences(plan, ours)]:
        more = len(differing) - _MOST_SHOWN
        raise UsageError(
            f"run {plan.run} cannot be taken over with {inventory.source}",
            why="; ".join(differing[:_MOST_SHOWN]) + (f"; and {more} more" if more > 0 else ""),
            hint=f"`orchestrate tail {plan.run} --hosts FILE`, with the hosts.toml that it was launched with",
        )
    # A host with tasks that answers and knows nothing of the run: an old plan may have been played back.
    unheard = [one.name for one in plan.hosts if one.name in answering and one.name not in known.tellers]
    reason = "" if known.authentic else NO_SEAL
    if known.authentic and unheard:
        reason = f"{', '.join(unheard)} {'does' if len(unheard) == 1 else 'do'} not know the run"
    return _hearsay(plan, ours, reason) if reason else _vouched(plan, ours)


def _differences(plan: RunPlan, ours: Mapping[str, Host]) -> Iterator[str]:
    """Return what a person has to mend; spares that are not ours are simply none for us."""
    for host in (*plan.hosts, *plan.retired):
        local = ours.get(host.name)
        if local is None:
            yield f"{host.name} is not in it"
        elif local.address != host.address:
            yield f"{host.name} has the address {local.address} there, {host.address} in the plan"


def _vouched(plan: RunPlan, ours: Mapping[str, Host]) -> RunPlan:
    """Our own plan, its hosts reached as this machine reaches them."""

    def here(host: Host) -> Host:
        planned = {field: getattr(host, field) for field in PLANNED}
        return replace(ours[host.name], **planned)

    return replace(
        plan,
        hosts=tuple(map(here, plan.hosts)),
        spares=tuple(
            here(host)
            for host in plan.spares
            if host.name in ours and ours[host.name].address == host.address
        ),
        retired=tuple(map(here, plan.retired)),
        hearsay="",
    )


def _hearsay(plan: RunPlan, ours: Mapping[str, Host], reason: str) -> RunPlan:
    """Keep what following, pulling and ending need, on hosts as the inventory has them.

    Nothing in it can be executed, nothing of this machine's environment is named.
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
        hearsay=reason,
    )


def speaks_for(plan: RunPlan, host: str, attempt: str, task: str) -> bool:
    """Return True if a host's word on a task counts: for attempts of this plan, it has to be the task's host.

    Hosts that have been replaced since may still have what an earlier attempt or a validation started.
    """
    number = AttemptName(attempt).number
    if number is None or number < plan.attempt:
        return True
    if not plan.hearsay and number > max(plan.attempt, FIRST + plan.restarts.most):
        return False
    return any(str(spec.id) == task and spec.host == host for spec in plan.tasks)
