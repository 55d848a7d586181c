"""Reading everything on this machine that a launch depends on, before `planning.plan.make` plans it.

A launch that cannot work is refused early, before its packages are resolved.
"""

import re
import shlex
import time
from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.errors import UsageError
from orchestrator.model import Host, Resumed
from orchestrator.planning.commands import check_commands, choose_command, commands, is_builtin
from orchestrator.planning.plan import LaunchFacts
from orchestrator.program import refusals
from orchestrator.program.findings import read_program
from orchestrator.program.refusals import Code
from orchestrator.quoting import toml
from orchestrator.requests import LaunchRequest
from orchestrator.store import new_run_id
from orchestrator.store.standing import over
from orchestrator.sync.contents import CodeSource, check_builtin
from orchestrator.verbs import Caller, code
from orchestrator.verbs.environment import check_data, locked, with_header
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.keeping import owner

# The launch with its final command, which a replay repeats; the other facts for its plan; and the code that
# is sent, None for worker_entry.
Reading: TypeAlias = tuple[LaunchRequest, LaunchFacts, CodeSource | None]


def read(given: LaunchRequest, caller: Caller, *, packages: bool = True, resolves: bool = True) -> Reading:
    """Read what a launch of the local code needs; raise UsageError.

    Without `packages` it has no environment; unless it `resolves`, no package index is queried.
    """
    request = choose_command(given)
    check_commands(request, given.command)
    request, converted = code.with_scripts(request)
    builtin, header = is_builtin(request.command), tuple[str, ...]()
    project = None if builtin else code.project(request.inventory, request.code)
    files = code.look(request.inventory, project)
    if packages:
        request, header = with_header(request, files)
    for command, hosts in commands(request).items():
        _check(command, hosts, files)
    if builtin and request.command:
        check_builtin(request.command)
    check_data(request.inventory)
    resumed = None if request.continues is None else _resumed(request, caller, files.cwd)
    table = request.inventory.environment if packages else None
    environment = None if table is None else locked(table, resolves=resolves)[0]
    facts = replace(facts_of(request, files), environment=environment, resumed=resumed)
    return request, replace(facts, notes=(*converted, *header)), project


def facts_of(request: LaunchRequest, files: Code) -> LaunchFacts:
    """Return the facts of a launch without its environment."""
    created = time.time()
    run, programs = str(new_run_id(created)), tuple(read_program(each, files) for each in commands(request))
    return LaunchFacts(run=run, owner=owner(), created=created, programs=programs, cwd=files.cwd)


def _resumed(request: LaunchRequest, caller: Caller, cwd: str) -> Resumed:
    """Describe the run to continue; raise UsageError if it cannot be continued."""
    folder = find_run(request.continues, request.inventory, caller)
    before = folder.read_plan()
    if folder.has_keeper() and over(folder) is None:  # after the end a keeper may still notify
        raise UsageError(f"run {before.run} has not ended", hint=f"`orchestrate stop {before.run}` ends it")
    if before.owner.partition("@")[0] != owner().partition("@")[0]:
        why = f"{before.owner} launched it: its folders, and what is in them, are not yours"
        hint = f"`orchestrate pull {before.run}` fetches its files where you may read them"
        raise UsageError(f"run {before.run} cannot be continued", why=why, hint=hint)
    if is_builtin(request.command) and not is_builtin(before.command):
        command = shlex.join(before.command)
        raise UsageError(
            f"run {before.run} ran `{command}`",
            why="without a command, the bundled training program would start in its folders",
            hint=f"`orchestrate launch --continue {before.run} -- {command}`",
        )
    if before.cwd != cwd:
        there, here = (f"{folder}/" if folder else "the top" for folder in (before.cwd, cwd))
        raise UsageError(
            f"the tasks of run {before.run} ran in {there} of the code, and would run in {here}",
            why="paths such as ./checkpoints would refer to another folder",
            hint="launch from the same folder as before, or with another --code",
        )
    seats = {str(spec.id): spec.host for spec in before.tasks}
    trees = (*(before.resumed.trees if before.resumed else ()), *filter(None, [before.tree]))
    return Resumed(before.folder, seats, before.leader.host, trees)


def _check(command: tuple[str, ...], hosts: Sequence[Host], files: Code) -> None:
    """Raise UsageError for a command that cannot work; one in hosts.toml gets a hint for that file."""
    try:
        refusals.check(command, files)
    except UsageError as error:
        if not hosts[0].command:
            raise
        names = ranges.fold(host.name for host in hosts)
        hint = re.sub(
            "`orchestrate launch -- ([^`]*)`", lambda match: f"`command = {toml(match[1])}`", error.hint
        )
        raise UsageError(f"the command of {names}: {error.what}", why=error.why, hint=hint) from None
