"""From the [env] table to hosts that train in the environment which it describes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from orchestrator.model import Environment, EnvironmentPlan, Host, Inventory, interpreter

if TYPE_CHECKING:
    from orchestrator.envs import Lock


def with_environment(inventory: Inventory, *, renew: bool = False) -> tuple[Inventory, EnvironmentPlan, Lock]:
    """The inventory with the interpreter of its [env] for every host that names none of its own.

    Raise UsageError or ClusterError where the packages cannot be resolved.
    """
    from orchestrator.envs import with_python

    assert inventory.environment is not None
    table = with_python(inventory.environment)
    lock = _lock(table, renew=renew)
    plan = EnvironmentPlan(lock.name, table.python, table.index, table.via)
    hosts = tuple(
        dataclasses.replace(host, python=interpreter(host, plan)) if host.python == Host.python else host
        for host in inventory.hosts
    )
    return dataclasses.replace(inventory, hosts=hosts), plan, lock


def _lock(table: Environment, *, renew: bool) -> Lock:
    """The lock that was kept for this recipe, or a new one: a later host gets what the first one got."""
    from orchestrator.envs import named, recipe_digest, resolve
    from orchestrator.store.locks import read_lock, write_lock

    recipe = recipe_digest(table)
    text = None if renew else read_lock(recipe)
    if text is not None:
        lock = named(text, table)
        if read_lock(lock.name) == text:  # else one of them is damaged
            return lock
    lock = resolve(table)
    for name in (lock.name, recipe):
        write_lock(name, lock.text)
    return lock


def planned_environment(inventory: Inventory) -> tuple[Inventory, EnvironmentPlan | None]:
    """The same for a run; nothing changes without [env]."""
    return (inventory, None) if inventory.environment is None else with_environment(inventory)[:2]
