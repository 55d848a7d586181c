"""The tables [env] and [data] of an inventory: the environment of its hosts, and files of this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.config.mistakes import listed
from orchestrator.errors import UsageError
from orchestrator.model import DEFAULT_PYTHON, Data, EnvironmentPlan, Inventory, interpreter
from orchestrator.plainfile import at_home
from orchestrator.planning.plan import choose_command
from orchestrator.program import invocation
from orchestrator.requests import LaunchRequest
from orchestrator.verbs import code

if TYPE_CHECKING:
    from orchestrator.envs import Lock

UNRESOLVED = "LOCK"  # stands for the name of a lock that is not made yet


def with_environment(
    inventory: Inventory, *, renew: bool = False, resolves: bool = True
) -> tuple[Inventory, EnvironmentPlan, Lock]:
    """Return the inventory with the interpreter of its [env] for every host that names none of its own.

    Unless it `resolves`, no package index is asked, and a lock that is not kept has a name alone. Raise
    UsageError or ClusterError where the packages cannot be resolved.
    """
    from orchestrator.envs import Lock, named, recipe_digest, resolve, with_python
    from orchestrator.store.known import read_lock, write_lock

    assert inventory.environment is not None
    table = with_python(inventory.environment)
    recipe = recipe_digest(table)
    text = None if renew else read_lock(recipe)  # a later host gets what the first one got
    lock = None if text is None else named(text, table)
    if lock is None or read_lock(lock.name) != text:  # else one of them is damaged
        lock = resolve(table) if resolves else Lock("", UNRESOLVED)
        for name in (lock.name, recipe) if resolves else ():
            write_lock(name, lock.text)
    plan = EnvironmentPlan(lock.name, table.python, table.index, table.via)
    hosts = tuple(
        replace(host, python=interpreter(host, plan)) if host.python == DEFAULT_PYTHON else host
        for host in inventory.hosts
    )
    return replace(inventory, hosts=hosts), plan, lock


def with_header(request: LaunchRequest) -> tuple[LaunchRequest, tuple[str, ...]]:
    """Make the [env] of a launch from the header of its script, and say so; raise UsageError for a bad one.

    An [env] or interpreters of hosts.toml come first.
    """
    command = choose_command(request.inventory.job, request.command)
    around = code.look(request.inventory, None)
    name = invocation.program(command) or ""
    text = code.text(name, around) if name.endswith(".py") else None
    if text is None or "# /// script" not in text:
        return request, ()
    from orchestrator.envs.script import of_script  # packaging takes 50 ms of every launch

    if (table := of_script(text, name)) is None:
        return request, ()
    inventory, request = request.inventory, replace(request, command=invocation.without_uv(command))
    if not table.packages:
        return request, ()
    own = "its [env]" if inventory.environment is not None else "its `python`"
    if inventory.environment is not None or all(host.python != DEFAULT_PYTHON for host in inventory.hosts):
        return request, (f"the packages in the header of {name} are not read: {inventory.source} has {own}",)
    note = f"the environment is what the header of {name} lists: {listed(table.packages, 'and')}"
    job = inventory.job
    if job.legacy_keras is None and not re.search(r"(?im)^tf[-_.]keras\b", "\n".join(table.packages)):
        job = replace(job, legacy_keras=False)  # it runs without tf-keras elsewhere, too
    return replace(request, inventory=replace(inventory, environment=table, job=job)), (note,)


def check_data(inventory: Inventory) -> None:
    """Raise UsageError for what [data] names and this machine does not have."""
    data = inventory.data or Data()
    named = [*data.paths, *data.keras, *filter(None, (data.tfds_dir,))]
    for one in named:
        if trouble := absent(one):
            raise UsageError(
                f"[data] names {one}, which {trouble}",
                why=f"{inventory.source} means files of this machine; relative paths are meant beside it",
                hint=f"correct it in {inventory.source}",
            )
    if data.sets:
        from orchestrator.phases.data import sources

        sources(data)


def absent(path: str) -> str:
    """Say what is the matter with a path of this machine: "is not there"; "" when it is."""
    try:
        at_home(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return ""
