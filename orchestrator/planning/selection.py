"""Some hosts of an inventory, by their names: `--only` and `--exclude`. Pure."""

from __future__ import annotations

import shlex

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.errors import UsageError
from orchestrator.model import Inventory, Role
from orchestrator.nearest import matching, nearest
from orchestrator.text import count


def narrow(inventory: Inventory, only: str | None, exclude: str | None) -> Inventory:
    """The inventory with the hosts that are chosen, in its own order; raise UsageError.

    Both are names as in hosts.toml: ranges, with commas between them.
    """
    wanted = {host.name for host in inventory.hosts} if only is None else _names(only, "--only", inventory)
    if exclude is not None:
        wanted -= _names(exclude, "--exclude", inventory)
    hosts = tuple(host for host in inventory.hosts if host.name in wanted)
    if not hosts:
        raise UsageError(
            "no host is left",
            why=f"{inventory.source} has {ranges.fold(host.name for host in inventory.hosts)}",
            hint="choose at least one of them",
        )
    return replace(inventory, hosts=hosts)


def stand_by(inventory: Inventory, spares: int) -> Inventory:
    """Return the inventory with its last workers as spares; raise UsageError where none would be left."""
    workers = [host.name for host in inventory.hosts if host.role is Role.WORKER and not host.spare]
    if spares >= len(workers):
        raise UsageError(
            f"--spares {spares} leaves no host to train",
            why=f"{inventory.source} has {count(len(workers), 'worker')}",
            hint=f"`--spares {len(workers) - 1}` at most",
        )
    names = set(workers[len(workers) - spares :])
    hosts = (replace(host, spare=True) if host.name in names else host for host in inventory.hosts)
    return replace(inventory, hosts=tuple(hosts))


def misread(option: str, text: str, error: ValueError) -> UsageError:
    """Say what `ranges` finds wrong with an option's value."""
    file = ", or name a file" if option == "--hosts" else ""
    return UsageError(f"{option} {text}: {error}", hint=f"write {option} 'gpu-[01-03],gpu-07'{file}")


def _names(text: str, option: str, inventory: Inventory) -> set[str]:
    try:
        names = ranges.expand_all(text)
    except ValueError as error:
        raise misread(option, text, error) from error
    known = [host.name for host in inventory.hosts]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        near = {name: matching(name, known) or [*filter(None, [nearest(name, known)])] for name in unknown}
        meant = dict.fromkeys(host for name in names for host in near.get(name, [name]))
        which = ranges.fold(unknown) or "nothing"
        raise UsageError(
            f"{option} names {which}, which is not a host of the inventory",
            why=f"its hosts are {ranges.fold(known)}",
            hint=f"write {option} {shlex.quote(ranges.fold(meant) or known[0])}",
        )
    return set(names)
