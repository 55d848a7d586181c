"""Rules after a failed attempt: whether another one follows, when, and on which hosts. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from orchestrator.diagnosis.statement import NUMBER, Statement
from orchestrator.events import TaskExited
from orchestrator.model import MAX_PORT, Host, Preparing, Role, RunPlan
from orchestrator.planning.plan import completion, place_tasks
from orchestrator.text import count, shell_signal
from orchestrator.value import Value

# ILL, ABRT, BUS, FPE, SEGV: the program's own. Any other signal came from outside and may not recur.
_OWN_SIGNALS = frozenset({4, 6, 7, 8, 11})


class FailedAttempt(Value):
    """What the decision about the next attempt needs from a failed one."""

    place: str  # text that is equal for equal failures; "" for an external cause
    step: int | None  # the last step that the failed task reported
    seconds: float  # from the start of its tasks to its first failure


def failure(exited: TaskExited | None, statement: Statement, steps: Mapping[str, int]) -> FailedAttempt:
    """Return the failure with this root cause (None if no task is to blame); `steps` is by task."""
    step = steps.get(exited.task) if exited else max(steps.values(), default=None)
    if exited is None or exited.lost or exited.stopped:
        return FailedAttempt("", step, 0.0)
    if exited.oom_kills:
        return FailedAttempt("out of memory", step, exited.seconds)
    number = exited.signal if exited.signal is not None else shell_signal(exited.code)
    outside = number > 0 and number not in _OWN_SIGNALS and number < 65
    place = statement.signature or f"status {exited.code}, signal {exited.signal}"
    return FailedAttempt("" if outside or statement.blames_peer else place, step, exited.seconds)


def unprepared(signature: str, *, outside: bool) -> FailedAttempt:
    """Return an attempt whose tasks were not all started; `outside`: because a host was lost."""
    return FailedAttempt("" if outside else NUMBER.sub("#", signature), None, 0.0)


def reason_to_end(failures: Sequence[FailedAttempt], most: int) -> str | None:
    """Return the reason why no further attempt follows ("" if restarts are off), or None if one follows."""
    if not most:
        return ""
    if len(failures) > 1:
        earlier, later = failures[-2:]
        if later.place and earlier.place == later.place and not _progressed(earlier, later):
            return "the same failure came twice at the same place"
    if len(failures) > most:
        return f"it was started again {count(most, 'time')}, as allowed"
    return None


def pause(failures: Sequence[FailedAttempt], pauses: Sequence[float]) -> float:
    """Return the seconds until the next attempt, which grow with attempts without progress."""
    stuck = 1
    for earlier, later in zip(reversed(failures[:-1]), reversed(failures), strict=False):
        if _progressed(earlier, later):
            break
        stuck += 1
    return pauses[min(stuck, len(pauses)) - 1]


def _progressed(earlier: FailedAttempt, later: FailedAttempt) -> bool:
    """Compare steps if reported, otherwise times: equal durations count as no progress."""
    if later.step is not None:
        return earlier.step is None or later.step > earlier.step
    return earlier.step is None and later.seconds > 1.5 * earlier.seconds + 10.0


class Change(Value):
    """A lost host's replacement; `by` is "" if the run continues without it."""

    host: str
    by: str


class TooFewHostsError(Exception):
    """The tasks cannot be placed without the lost hosts; the text gives the reason."""


def replace_lost(
    plan: RunPlan, lost: Collection[str], spares: Sequence[Host], attempt: int, *, started: bool = False
) -> tuple[RunPlan, tuple[Change, ...]]:
    """Return the next attempt's plan, with spares for lost hosts or fewer hosts, and the changes.

    A spare takes the lost host's role, number of tasks and position, so that the order of the cluster is
    kept. If tasks were `started` before, a lost host may still run its own: the new ones listen on the next
    ports. Raise TooFewHostsError.
    """
    unused = list(spares)
    hosts: list[Host] = []
    changes: list[Change] = []
    for host in plan.hosts:
        if host.name not in lost:
            hosts.append(host)
            continue
        spare = next((candidate for candidate in unused if fits(candidate, host)), None)
        changes.append(Change(host.name, spare.name if spare else ""))
        if spare is not None:
            unused.remove(spare)
            hosts.append(replace(spare, **_place(host), spare=False))
    hosts = _complete(plan, hosts, [change.host for change in changes if not change.by])
    new = {change.by: change.host for change in changes if change.by}
    preparing = Preparing(plan.preparing.leader or plan.leader.host, {**plan.preparing.stands_in, **new})
    planned = replace(_with_hosts(plan, hosts), attempt=attempt, preparing=preparing)
    return (next_ports(planned) if changes and started else planned), tuple(changes)


def _place(host: Host) -> dict[str, Any]:
    """Return the settings that a replacement takes over from the host that it replaces."""
    return {name: getattr(host, name) for name in ("role", "tasks", "command", "args")}


def undo_replacements(plan: RunPlan, unfit: Collection[str]) -> RunPlan:
    """Return the plan without these replacements: the original hosts have their places again.

    A replacement whose place is otherwise taken by now stays, for `replace_lost` to replace.
    """
    names = {host.name for host in plan.hosts}
    stood = {name: lost for name, lost in plan.preparing.stands_in.items() if name in unfit}
    places = {name: plan.host(lost) for name, lost in stood.items() if lost not in names}
    hosts = [
        replace(places[host.name], **_place(host)) if host.name in places else host for host in plan.hosts
    ]
    stands_in = {name: lost for name, lost in plan.preparing.stands_in.items() if name not in unfit}
    return replace(
        _with_hosts(plan, hosts),
        unfit=(*plan.unfit, *sorted(unfit)),
        preparing=replace(plan.preparing, stands_in=stands_in),
    )


def candidates(plan: RunPlan, connected: Collection[str], absent: Collection[str] = ()) -> list[Host]:
    """Return spares, and replaced hosts that are back, except `absent` ones."""
    back = (host for host in plan.retired if host.name in connected)
    return [host for host in (*plan.spares, *back) if host.name not in {*plan.unfit, *absent}]


def joined(plan: RunPlan) -> list[str]:
    """Return the replacement hosts; they must be checked before tasks start."""
    return [host.name for host in plan.hosts if host.name in plan.preparing.stands_in]


def _with_hosts(plan: RunPlan, hosts: Sequence[Host]) -> RunPlan:
    """Return the plan with its tasks on these hosts; the other hosts with tasks are retired."""
    cluster, tasks, _ = place_tasks(tuple(hosts), plan.command, plan.recipe)
    seated = {host.name for host in hosts}
    retired = [host for host in (*plan.retired, *plan.hosts) if host.name not in seated]
    return replace(
        plan,
        hosts=tuple(hosts),
        cluster=cluster,
        tasks=tasks,
        completion=completion(cluster),
        spares=tuple(host for host in plan.spares if host.name not in seated),
        retired=tuple({host.name: host for host in retired}.values()),
    )


def move(plan: RunPlan, ports: Mapping[str, int]) -> RunPlan:
    """Return the plan with other task ports; `ports` is the first one by host."""
    return _with_hosts(
        plan, [replace(host, task_port=ports.get(host.name, host.task_port)) for host in plan.hosts]
    )


def next_ports(plan: RunPlan) -> RunPlan:
    """Return the plan with task ports that no attempt has used yet; unchanged if none are left.

    Entries with one address may be one machine. Ports only increase, so nobody has to remember the old ones.
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
    """Return the seconds without a keeper or output after which a task ends itself; None: never.

    At least `least`; None unless its host may be replaced: a later attempt could then run without it.
    """
    replaceable = plan.spares or plan.retired or plan.restarts.min_hosts is not None
    return max(plan.restarts.host_timeout, least) if plan.restarts.most and replaceable else None


def given_up(lost: Mapping[str, float], awaited: Collection[str], *, silent: float, patience: float) -> str:
    """Return a host with awaited tasks that was lost for more than `patience` seconds; "" for none.

    `lost` has the seconds since each host was lost. While any task produces output (`silent` seconds ago),
    training continues, and only our connection to the host is broken.
    """
    if silent < patience:
        return ""
    return next((name for name, seconds in lost.items() if name in awaited and seconds > patience), "")


def fits(spare: Host, lost: Host) -> bool:
    """Return True if a spare has as many devices as the lost host, or a count is unknown."""
    if spare.devices is None or lost.devices is None:
        return True
    return len(spare.devices) == len(lost.devices)


def _complete(plan: RunPlan, hosts: list[Host], missing: list[str]) -> list[Host]:
    """Return the hosts that continue, with a chief if there was one; raise TooFewHostsError for too few."""
    if not missing:
        return hosts
    names, least = ", ".join(missing), plan.restarts.min_hosts
    if least is None or len(hosts) < least:
        only = f", and --min-hosts {least} does not allow {count(len(hosts), 'host')}" if least else ""
        raise TooFewHostsError(f"{names} cannot be reached, no spare fits{only}")
    roles = {host.role for host in hosts}
    had = {host.role for host in plan.hosts}
    if Role.PS in had and Role.PS not in roles:
        raise TooFewHostsError(f"{names} cannot be reached, and no parameter server would be left")
    if Role.CHIEF in had and Role.CHIEF not in roles:
        heir = next((host for host in hosts if host.role is Role.WORKER and host.tasks == 1), None)
        if heir is None:
            raise TooFewHostsError(f"{names} cannot be reached, and no worker could become the chief")
        chief = next(host for host in plan.hosts if host.role is Role.CHIEF)
        hosts = [replace(host, **{**_place(chief), "tasks": 1}) if host is heir else host for host in hosts]
        roles = {host.role for host in hosts}
    if not roles & {Role.CHIEF, Role.WORKER}:
        raise TooFewHostsError(f"{names} cannot be reached, and no host that trains would be left")
    return hosts
