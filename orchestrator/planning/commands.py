"""What a launch runs where: its command, that of each host, and the argv of a task. Pure."""

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.errors import UsageError
from orchestrator.model import OUTSIDE, Host, RunPlan
from orchestrator.ranges import grouped
from orchestrator.requests import LaunchRequest

WORKER_ENTRY = ("-m", "worker_entry")


def choose_command(request: LaunchRequest) -> LaunchRequest:
    """Return the launch with its final command: its own, or [job]'s with the launch's options appended.

    If every host has a command of its own, it is that of the first host that trains.
    """
    inventory, command = request.inventory, request.command
    if command and not command[0].startswith("-"):
        return request
    hosts = [host for host in inventory.hosts if not host.spare]
    first = min(hosts, key=lambda host: host.role in OUTSIDE, default=None)
    if first is not None and not (inventory.job.command or command) and all(host.command for host in hosts):
        return replace(request, command=first.command)
    return replace(request, command=(*inventory.job.command, *command))


def command_of(host: Host, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a host's tasks in a launch of `command`."""
    return (*(host.command or command), *host.args)


def own_commands(plan: RunPlan) -> dict[str, str]:
    """Return the commands of hosts that do not run the launch's command, for tables."""
    own = (host for host in plan.hosts if host.command or host.args)
    return {f"command of {host.name}": shlex.join(command_of(host, plan.command)) for host in own}


def commands(request: LaunchRequest) -> dict[tuple[str, ...], list[Host]]:
    """Return each command with the hosts that run it, without spares; the launch's own comes first."""
    hosts = [host for host in request.inventory.hosts if not host.spare]
    by_command = grouped((command_of(host, request.command), host) for host in hosts)
    length = len(request.command)
    return dict(sorted(by_command.items(), key=lambda item: item[0][:length] != request.command))


def is_builtin(command: Sequence[str]) -> bool:
    """Return True if worker_entry runs: no command, or only options."""
    return not command or command[0].startswith("-")


def resolve(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return the argv for a host: x.py under its `python`, x.R under Rscript, nothing for worker_entry."""
    if is_builtin(command):
        return (python, *WORKER_ENTRY, *command)
    match PurePath(command[0]).suffix:
        case ".py":
            return (python, *command)
        case ".R" | ".r":
            return ("Rscript", *command)
    return command


def is_r(argv: tuple[str, ...]) -> bool:
    """Return True for a resolved command that runs R."""
    return PurePath(argv[0]).name == "Rscript"


def check_commands(request: LaunchRequest, given: tuple[str, ...]) -> None:
    """Raise UsageError for a `given` command that would run nowhere, and for hosts that have none."""
    inventory = request.inventory
    hosts = [host for host in inventory.hosts if not host.spare]
    bare = [host.name for host in hosts if not host.command]
    own = [host.name for host in hosts if host.command]
    if given and not bare and hosts:
        raise UsageError(
            f"{shlex.join(given)} would run on no host: all have a `command` in {inventory.source}",
            hint="omit it, or remove `command` from the hosts that should run it",
        )
    if own and bare and is_builtin(request.command):
        raise UsageError(
            f"there is no command for {ranges.fold(bare)}",
            why=f"{ranges.fold(own)} {'has' if len(own) == 1 else 'have'} one in {inventory.source}, and the "
            "bundled training program trains with none of them",
            hint="`orchestrate launch -- train.py`, or write `command` under [job]",
        )
