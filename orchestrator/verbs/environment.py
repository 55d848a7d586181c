"""The tables [env] and [data] of an inventory: the hosts' environment, and data on this machine."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.config.mistakes import listed
from orchestrator.errors import UsageError
from orchestrator.model import DEFAULT_PYTHON, Data, Environment, EnvironmentPlan, Inventory
from orchestrator.plainfile import at_home
from orchestrator.program import invocation
from orchestrator.program.refusals import Code
from orchestrator.requests import LaunchRequest

if TYPE_CHECKING:
    from orchestrator.envs import Lock

UNRESOLVED = "LOCK"  # stands for the name of a lock that does not exist yet


def locked(table: Environment, *, renew: bool = False, resolves: bool = True) -> tuple[EnvironmentPlan, Lock]:
    """Return the environment of [env], and its lock.

    Unless it `resolves`, no package index is queried, and a lock that is not stored has only a name. Raise
    UsageError or ClusterError if the packages cannot be resolved.
    """
    from orchestrator.envs import Lock, named, recipe_digest, resolve, with_python
    from orchestrator.store.known import read_lock, write_lock

    table = with_python(table)
    recipe = recipe_digest(table)
    text = None if renew else read_lock(recipe)  # a later host gets what the first one got
    lock = None if text is None else named(text, table)
    if lock is None or read_lock(lock.name) != text:  # otherwise one of them is damaged
        lock = resolve(table) if resolves else Lock("", UNRESOLVED)
        for name in (lock.name, recipe) if resolves else ():
            write_lock(name, lock.text)
    return EnvironmentPlan(lock.name, table.python, table.index, table.via), lock


def with_header(request: LaunchRequest, files: Code) -> tuple[LaunchRequest, tuple[str, ...]]:
    """Create the [env] of a launch from its script's header, with a notice; raise UsageError for a bad one.

    An [env] or interpreters in hosts.toml take precedence.
    """
    name = invocation.program(request.command) or ""
    text = files.text(name) if name.endswith(".py") else None
    if text is None or "# /// script" not in text:
        return request, ()
    from orchestrator.envs.script import of_script  # importing packaging takes 50 ms of every launch

    inventory = request.inventory
    is_set = inventory.environment is not None or all(
        host.python != DEFAULT_PYTHON for host in inventory.hosts
    )
    if (table := of_script(text, name, is_used=not is_set)) is None:
        return request, ()
    request = replace(request, command=invocation.without_uv(request.command))
    if not table.packages:
        return request, ()
    own = "its [env]" if inventory.environment is not None else "its `python`"
    if is_set:
        return request, (f"the packages in the header of {name} are not used: {inventory.source} has {own}",)
    note = f"the environment has the packages in the header of {name}: {listed(table.packages, 'and')}"
    job = inventory.job
    if job.legacy_keras is None and not re.search(r"(?im)^tf[-_.]keras\b", "\n".join(table.packages)):
        job = replace(job, legacy_keras=False)  # the script names its packages, and needs no tf-keras
    return replace(request, inventory=replace(inventory, environment=table, job=job)), (note,)


def check_data(inventory: Inventory) -> None:
    """Raise UsageError if a path or set in [data] does not exist on this machine."""
    data = inventory.data or Data()
    named = [*data.paths, *data.keras, *filter(None, (data.tfds_dir,))]
    for name in named:
        if trouble := absent(name):
            raise UsageError(
                f"[data] names {name}, which {trouble}",
                why=f"[data] is on this machine; relative paths start at the folder of {inventory.source}",
                hint=f"correct the path in {inventory.source}",
            )
    if data.sets:
        from orchestrator.phases.data import sources

        sources(data)


def absent(path: str) -> str:
    """Return the problem with a local path, such as "does not exist"; "" for a folder or file."""
    try:
        if stat.S_IFMT(at_home(path).stat().st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
            return "is neither a folder nor a file"
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return ""
