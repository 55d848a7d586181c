"""Selecting the hosts of a launch, and tasks of a run, by name. Pure."""

import shlex
from collections.abc import Iterable

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.errors import UsageError
from orchestrator.model import Inventory, Role, RunPlan, TaskId
from orchestrator.nearest import matching, nearest
from orchestrator.text import count


def narrow(inventory: Inventory, only: str | None, exclude: str | None) -> Inventory:
    """Return the inventory with only the selected hosts, in its own order; raise UsageError.

    Both options take names as in hosts.toml: ranges, separated by commas.
    """
    chosen = {host.name for host in inventory.hosts} if only is None else _names(only, "--only", inventory)
    if exclude is not None:
        chosen -= _names(exclude, "--exclude", inventory)
    hosts = tuple(host for host in inventory.hosts if host.name in chosen)
    if not hosts:
        raise UsageError(
            "no host is left",
            why=f"{inventory.source} has {ranges.fold(host.name for host in inventory.hosts)}",
            hint="choose at least one of them",
        )
    return replace(inventory, hosts=hosts)


def stand_by(inventory: Inventory, spares: int) -> Inventory:
    """Return the inventory with its last workers as spares; raise UsageError if none would be left."""
    workers = [host.name for host in inventory.hosts if host.role is Role.WORKER and not host.spare]
    if spares >= len(workers):
        raise UsageError(
            f"--spares {spares} leaves no host to train",
            why=f"{inventory.source} has {count(len(workers), 'worker')}",
            hint=f"`--spares {len(workers) - 1}` at most" if len(workers) > 1 else "omit --spares",
        )
    names = set(workers[len(workers) - spares :])
    hosts = (replace(host, spare=True) if host.name in names else host for host in inventory.hosts)
    return replace(inventory, hosts=tuple(hosts))


def wanted_tasks(tasks: Iterable[TaskId], plan: RunPlan, whose: str) -> set[str]:
    """Return the named tasks, by default all; raise UsageError for one that does not exist."""
    requested = {str(task) for task in tasks}
    if unknown := requested - {str(spec.id) for spec in plan.tasks}:
        raise UsageError(
            f"{whose} has no task {min(unknown)}",
            hint=f"name one of its tasks: {', '.join(str(spec.id) for spec in plan.tasks)}",
        )
    return requested


def misread(option: str, text: str, error: ValueError) -> UsageError:
    """Return the error that `ranges` reports for an option's value."""
    file = ", or name a file" if option == "--hosts" else ""
    return UsageError(f"{option} {text}: {error}", hint=f"write {option} 'gpu-[01-03],gpu-07'{file}")


def _names(text: str, option: str, inventory: Inventory) -> set[str]:
    try:
        names = ranges.expand_all(text)
    except ValueError as error:
        raise misread(option, text, error) from error
    hosts = [host.name for host in inventory.hosts]
    unknown = [name for name in names if name not in hosts]
    if unknown or not names:
        near = {name: matching(name, hosts) or [*filter(None, [nearest(name, hosts)])] for name in unknown}
        meant = dict.fromkeys(host for name in names for host in near.get(name, [name]))
        which = ranges.fold(unknown) or "nothing"
        raise UsageError(
            f"{option} names {which}, which is not a host of the inventory",
            why=f"its hosts are {ranges.fold(hosts)}",
            hint=f"write {option} {shlex.quote(ranges.fold(meant) or hosts[0])}",
        )
    return set(names)
