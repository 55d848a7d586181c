"""The inventory of a command line: a file, one in a parent folder, or the hosts named by `--hosts`."""

import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from orchestrator import ranges, slurm
from orchestrator.config import load as config
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import read_address, read_name, read_target
from orchestrator.errors import HostError, UsageError
from orchestrator.model import LOCAL, Host, Inventory, Way
from orchestrator.planning.selection import misread, narrow
from orchestrator.quoting import toml
from orchestrator.requests import Selection
from orchestrator.ssh.resolve import resolve
from orchestrator.verbs import Caller

NAME = "hosts.toml"
SLURM = "slurm"  # the nodes of the current job; ./slurm is a file


def load(given: str | None, caller: Caller) -> Inventory:
    """Return the inventory of `--hosts`, or the hosts.toml of this folder or a parent; raise UsageError."""
    if given == SLURM:
        made = _of_job(caller)
    elif names := named_hosts(given):
        made = _of_names(names, caller)
    else:
        made = _of_file(given, caller)
    # A host reached by srun needs its job: a later keeper of the run may be outside it.
    hosts = (replace(host, job=slurm.job_here()) if host.via is Way.SRUN else host for host in made.hosts)
    return replace(made, hosts=tuple(hosts))


def chosen(selection: Selection, caller: Caller) -> Inventory:
    """Return the inventory of a selection, with only its hosts."""
    return narrow(load(selection.hosts, caller), selection.only, selection.exclude)


def _of_file(given: str | None, caller: Caller) -> Inventory:
    path = locate(given)
    if not os.path.lexists(path):
        why = f"searched in {Path.cwd()} and every folder above it"
        hint = "`orchestrate init gpu-01 gpu-02` writes one for these hosts; or name a file with --hosts"
        if given is not None:
            why = "a single word after --hosts is a file"
            hint = "name a file, or hosts with commas: `--hosts gpu-01,gpu-02`, or `--hosts gpu-01,` for one"
        raise UsageError(f"there is no {path}", why=why, hint=hint)
    made = config.load(path, ours=given is None)
    if given is None and path != Path(NAME):
        caller.tell(f"inventory: {path}")
    return made


def locate(given: str | None) -> Path:
    """Return the file's path; `hosts.toml` in this folder if there is none here or above."""
    if given is not None:
        return Path(given)
    here = Path.cwd()
    # A folder or a broken link is not skipped in favor of a file further up.
    files = (folder / NAME for folder in (here, *here.parents) if os.path.lexists(folder / NAME))
    return Path(os.path.relpath(next(files, NAME)))


def named_hosts(given: str | None) -> tuple[str, ...]:
    """Return the hosts of `--hosts gpu-01,gpu-02`; () if it is the name of a file.

    A single host needs a trailing comma: a single word is the name of a file.
    """
    if given is None or "/" in given or given.endswith(".toml") or Path(given).exists():
        return ()
    try:
        return ranges.expand_all(given) if re.search(r"[,[\]]", given) else ()
    except ValueError as error:
        raise misread("--hosts", given, error) from error


def is_there(given: str | None) -> bool:
    """Return True if `load` would find hosts."""
    return given == SLURM or bool(named_hosts(given)) or locate(given).exists()


def host_of(ssh: str, ssh_config: str | None = None) -> Host:
    """Return the host that `ssh` would reach, with the HostName of ssh_config as its address. Raise Wrong."""
    target = read_target(ssh)
    name = read_name(target.host)
    host = Host(name, target.host, "127.0.0.1", target.user, target.port, ssh_config=ssh_config)
    if host.is_local:
        return host
    try:
        address = resolve(host).hostname
    except HostError:  # which the connecting code reports
        address = host.ssh
    # A fully qualified name ends with a dot, but no address in hosts.toml does.
    return replace(host, address=read_address(address.removesuffix(".")))


def _of_job(caller: Caller) -> Inventory:
    """Return the nodes of a Slurm job; a hosts.toml contributes everything except its hosts."""
    job = slurm.job_here()
    tables = _tables(slurm.allocation(job))
    path = locate(None)
    settings = path.is_file()
    inventory = (
        config.load(path, ours=True, hosts=tables) if settings else config.parse(tables, "--hosts slurm")
    )
    names = ranges.fold(host.name for host in inventory.hosts)
    caller.tell(f"hosts: {names}, of Slurm job {job}; settings: {path if settings else 'none'}")
    return inventory


def _of_names(words: tuple[str, ...], caller: Caller) -> Inventory:
    """Return an inventory of only these hosts, whose addresses are the HostNames in ssh_config."""
    hosts = []
    try:
        for word in words:
            host = host_of(word)
            # Other machines may resolve this machine's name, but not "local".
            mixed = host.is_local and set(words) != {LOCAL}
            address = socket.gethostname() if mixed else host.address
            hosts.append({"name": host.name, "ssh": word, "address": address})
    except Wrong as wrong:
        raise UsageError(f"--hosts {','.join(words)}: {wrong}", hint="`--hosts gpu-01,gpu-02`") from wrong
    inventory = config.parse(_tables(hosts), "--hosts")
    names = ranges.fold(host.name for host in inventory.hosts)
    caller.tell(f"hosts: {names}, from --hosts; no file is read")
    return inventory


def _tables(hosts: Iterable[Mapping[str, object]]) -> str:
    """Return hosts as tables of hosts.toml."""
    rows = (["[[host]]", *(f"{key} = {toml(value)}" for key, value in host.items())] for host in hosts)
    return "\n".join(line for row in rows for line in row)
