"""From the [env] table to hosts that train in the environment which it describes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from orchestrator.model import Environment, EnvironmentPlan, Host, Inventory, interpreter

if TYPE_CHECKING:
    from orchestrator.envs import Lock


UNRESOLVED = "LOCK"  # stands for the name of a lock that is not made yet


def with_environment(inventory: Inventory, *, renew: bool = False) -> tuple[Inventory, EnvironmentPlan, Lock]:
    """Return the inventory with the interpreter of its [env] for every host that names none of its own.

    Raise UsageError or ClusterError where the packages cannot be resolved.
    """
    table = _table(inventory)
    lock = (None if renew else _kept(table)) or _resolved(table)
    return *_planned(inventory, table, lock.name), lock


def planned_environment(
    inventory: Inventory, *, resolve: bool = True
) -> tuple[Inventory, EnvironmentPlan | None]:
    """Plan the environment of a run, if there is an [env]; without `resolve` no package index is asked."""
    if inventory.environment is None:
        return inventory, None
    table = _table(inventory)
    lock = _kept(table) or (_resolved(table) if resolve else None)
    return _planned(inventory, table, lock.name if lock else UNRESOLVED)


def _table(inventory: Inventory) -> Environment:
    from orchestrator.envs import with_python

    assert inventory.environment is not None
    return with_python(inventory.environment)


def _planned(inventory: Inventory, table: Environment, name: str) -> tuple[Inventory, EnvironmentPlan]:
    plan = EnvironmentPlan(name, table.python, table.index, table.via)
    hosts = tuple(
        dataclasses.replace(host, python=interpreter(host, plan)) if host.python == Host.python else host
        for host in inventory.hosts
    )
    return dataclasses.replace(inventory, hosts=hosts), plan


def _kept(table: Environment) -> Lock | None:
    """Return the lock that was kept for this recipe: a later host gets what the first one got."""
    from orchestrator.envs import named, recipe_digest
    from orchestrator.store.locks import read_lock

    if (text := read_lock(recipe_digest(table))) is None:
        return None
    lock = named(text, table)
    return lock if read_lock(lock.name) == text else None  # else one of them is damaged


def _resolved(table: Environment) -> Lock:
    from orchestrator.envs import recipe_digest, resolve
    from orchestrator.store.locks import write_lock

    lock = resolve(table)
    for name in (lock.name, recipe_digest(table)):
        write_lock(name, lock.text)
    return lock
