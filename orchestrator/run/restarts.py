"""Rules after a failed attempt: another one or none, after which pause, and on which hosts. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.diagnosis import lastwords
from orchestrator.events import TaskExited
from orchestrator.model import MAX_PORT, Host, Preparing, Role, RunPlan
from orchestrator.planning.plan import completion, seat
from orchestrator.text import count, shell_signal

# ILL, ABRT, BUS, FPE, SEGV: the program's own. Any other signal came from outside and may not come again.
_OWN_SIGNALS = frozenset({4, 6, 7, 8, 11})
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


class FailedAttempt(Struct, frozen=True):
    """One failed attempt, as far as it matters for the next."""

    place: str  # what failed, in words that come again when it does; "" when it came from outside
    step: int | None  # the last one that the failed task reported
    seconds: float  # from the start of its tasks to its first failure


def failure(exited: TaskExited | None, lines: Sequence[str], steps: Mapping[str, int]) -> FailedAttempt:
    """Return what the first cause of an attempt was (None when no task is to blame); `steps` is by task."""
    step = steps.get(exited.task) if exited else max(steps.values(), default=None)
    if exited is None or exited.lost or exited.stopped:
        return FailedAttempt("", step, 0.0)
    if exited.oom_kills:
        return FailedAttempt("out of memory", step, exited.seconds)
    number = exited.signal if exited.signal is not None else shell_signal(exited.code)
    outside = number > 0 and number not in _OWN_SIGNALS and number < 65
    said = lastwords.exception(lines) or f"status {exited.code}, signal {exited.signal}"
    if outside or lastwords.blames_peer(lines):
        return FailedAttempt("", step, exited.seconds)
    return FailedAttempt(_NUMBER.sub("#", said), step, exited.seconds)


def unprepared(said: str, *, outside: bool) -> FailedAttempt:
    """An attempt whose tasks were not all started, in words; `outside`: a host was lost over it."""
    return FailedAttempt("" if outside else _NUMBER.sub("#", said), None, 0.0)


def enough(failures: Sequence[FailedAttempt], most: int) -> str | None:
    """Why no other attempt follows these, "" where none was asked for; None when one does."""
    if not most:
        return ""
    if len(failures) > 1:
        earlier, later = failures[-2:]
        if later.place and earlier.place == later.place and not _came_further(earlier, later):
            return "the same failure came twice at the same place"
    if len(failures) > most:
        return f"it was started again {count(most, 'time')}, as allowed"
    return None


def pause(failures: Sequence[FailedAttempt], pauses: Sequence[float]) -> float:
    """Seconds until the next attempt: the more attempts without progress, the later one of `pauses`."""
    stuck = 1
    for earlier, later in zip(reversed(failures[:-1]), reversed(failures), strict=False):
        if _came_further(earlier, later):
            break
        stuck += 1
    return pauses[min(stuck, len(pauses)) - 1]


def _came_further(earlier: FailedAttempt, later: FailedAttempt) -> bool:
    """By steps where they are reported; else by time, since what takes as long is taken for the same."""
    if later.step is not None:
        return earlier.step is None or later.step > earlier.step
    return earlier.step is None and later.seconds > 1.5 * earlier.seconds + 10.0


class Change(Struct, frozen=True):
    """The end of a host's place; `by` is "" when the run continues without it."""

    host: str
    by: str


class NoSeatError(Exception):
    """The tasks cannot be placed without the lost hosts; the text says why."""


def reseat(
    plan: RunPlan, lost: Collection[str], spares: Sequence[Host], attempt: int, *, started: bool = False
) -> tuple[RunPlan, tuple[Change, ...]]:
    """The plan of the next attempt, in which `spares` stand in for lost hosts, or fewer hosts continue.

    A spare takes the lost host's role, its number of tasks and its position, so that the order of the
    cluster stays as it was. Where tasks were `started` before, a lost host may still run its own: the new
    ones listen on the next ports. Raise NoSeatError.
    """
    left = list(spares)
    hosts: list[Host] = []
    changes: list[Change] = []
    for host in plan.hosts:
        if host.name not in lost:
            hosts.append(host)
            continue
        spare = next((one for one in left if fits(one, host)), None)
        changes.append(Change(host.name, spare.name if spare else ""))
        if spare is not None:
            left.remove(spare)
            hosts.append(replace(spare, role=host.role, tasks=host.tasks, spare=False))
    hosts = _complete(plan, hosts, [change.host for change in changes if not change.by])
    new = {change.by: change.host for change in changes if change.by}
    preparing = Preparing(
        plan.preparing.leader or plan.tasks[0].host,
        {**plan.preparing.stands_in, **new},
    )
    planned = replace(_seated(plan, hosts), attempt=attempt, preparing=preparing)
    return (next_ports(planned) if changes and started else planned), tuple(changes)


def unseat(plan: RunPlan, unfit: Collection[str]) -> RunPlan:
    """The plan without these hosts that stood in for others: the others have their places again.

    One whose place is taken elsewhere by now stays, for `reseat` to replace.
    """
    names = {host.name for host in plan.hosts}
    stood = {name: lost for name, lost in plan.preparing.stands_in.items() if name in unfit}
    places = {name: plan.host(lost) for name, lost in stood.items() if lost not in names}
    hosts = [
        replace(places[host.name], role=host.role, tasks=host.tasks) if host.name in places else host
        for host in plan.hosts
    ]
    stands_in = {name: lost for name, lost in plan.preparing.stands_in.items() if name not in unfit}
    return replace(
        _seated(plan, hosts),
        unfit=(*plan.unfit, *sorted(unfit)),
        preparing=replace(plan.preparing, stands_in=stands_in),
    )


def candidates(plan: RunPlan, connected: Collection[str]) -> list[Host]:
    """Spares, and hosts that were replaced and are back."""
    back = (host for host in plan.retired if host.name in connected)
    return [host for host in (*plan.spares, *back) if host.name not in plan.unfit]


def joined(plan: RunPlan) -> list[str]:
    """The hosts with tasks that have to be examined before these are started."""
    return [host.name for host in plan.hosts if host.name in plan.preparing.stands_in]


def _seated(plan: RunPlan, hosts: Sequence[Host]) -> RunPlan:
    """The plan with its tasks on these hosts; the others that had tasks are retired."""
    cluster, tasks, _ = seat(tuple(hosts), plan.command, plan.recipe)
    seated = {host.name for host in hosts}
    gone = [host for host in (*plan.retired, *plan.hosts) if host.name not in seated]
    return replace(
        plan,
        hosts=tuple(hosts),
        cluster=cluster,
        tasks=tasks,
        completion=completion(cluster),
        spares=tuple(host for host in plan.spares if host.name not in seated),
        retired=tuple({host.name: host for host in gone}.values()),
    )


def move(plan: RunPlan, ports: Mapping[str, int]) -> RunPlan:
    """The plan with other task ports; `ports` is the first one by host."""
    return _seated(
        plan, [replace(host, task_port=ports.get(host.name, host.task_port)) for host in plan.hosts]
    )


def next_ports(plan: RunPlan) -> RunPlan:
    """The plan with task ports that no attempt has had yet; as it is where none are left.

    Entries with one address may be one machine. Ports only ever grow, so nobody has to remember the old ones.
    """
    last: dict[str, int] = {}
    for host in (*plan.hosts, *plan.retired):
        last[host.address] = max(last.get(host.address, 0), host.task_port + host.tasks - 1)
    first: dict[str, int] = {}
    for host in plan.hosts:
        first[host.name] = last[host.address] + 1
        last[host.address] += host.tasks
    return plan if any(port > MAX_PORT for port in last.values()) else move(plan, first)


def fence(plan: RunPlan, least: float) -> float | None:
    """Seconds without a word from a keeper, nor any of its own, after which a task ends itself; None: never.

    At least `least`. Only where its host may be replaced meanwhile: then a later attempt may run without it.
    """
    replaceable = plan.spares or plan.retired or plan.restarts.min_hosts is not None
    return max(plan.restarts.host_timeout, least) if plan.restarts.most and replaceable else None


def given_up(
    lost: Mapping[str, float], awaited: Collection[str], *, hosts: int, silent: float, patience: float
) -> str:
    """A host with awaited tasks that was lost for more than `patience` seconds; "" for none.

    `lost` has the seconds since each of the `hosts` hosts of the attempt was lost. While any task was heard
    (`silent` seconds ago), training continues, and only our way to the host is broken; when all hosts are
    lost, it is our own network.
    """
    if len(lost) == hosts or silent < patience:
        return ""
    return next((name for name, seconds in lost.items() if name in awaited and seconds > patience), "")


def fits(spare: Host, lost: Host) -> bool:
    """Return True if a spare's devices can be shared out as the lost host's: tasks must be alike."""
    if spare.devices is None or lost.devices is None:
        return True
    return len(spare.devices) == len(lost.devices)


def _complete(plan: RunPlan, hosts: list[Host], missing: list[str]) -> list[Host]:
    """The hosts that continue, with a chief where there was one; raise NoSeatError when they are too few."""
    if not missing:
        return hosts
    names, least = ", ".join(missing), plan.restarts.min_hosts
    if least is None or len(hosts) < least:
        only = f", and --min-hosts {least} does not allow {count(len(hosts), 'host')}" if least else ""
        raise NoSeatError(f"{names} cannot be reached, no spare fits{only}")
    roles = {host.role for host in hosts}
    had = {host.role for host in plan.hosts}
    if Role.PS in had and Role.PS not in roles:
        raise NoSeatError(f"{names} cannot be reached, and no parameter server would be left")
    if Role.CHIEF in had and Role.CHIEF not in roles:
        heir = next((host for host in hosts if host.role is Role.WORKER and host.tasks == 1), None)
        if heir is None:
            raise NoSeatError(f"{names} cannot be reached, and no worker could become the chief")
        hosts = [replace(host, role=Role.CHIEF) if host is heir else host for host in hosts]
        roles = {host.role for host in hosts}
    if not roles & {Role.CHIEF, Role.WORKER}:
        raise NoSeatError(f"{names} cannot be reached, and no host that trains would be left")
    return hosts
