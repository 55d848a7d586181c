"""The inventory of a command line: a file, one in a folder above, or the hosts named by `--hosts`."""

from __future__ import annotations

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
SLURM = "slurm"  # the nodes of the job that we are in; ./slurm is a file


def load(wanted: str | None, caller: Caller) -> Inventory:
    """Return what `--hosts` says, or the hosts.toml of this folder or of one above it; raise UsageError."""
    if wanted == SLURM:
        made = _of_job(caller)
    elif words := named_hosts(wanted):
        made = _of_names(words, caller)
    else:
        made = _of_file(wanted, caller)
    # Whoever keeps the run later is perhaps not in the job of hosts that srun leads to.
    hosts = (replace(host, job=slurm.job_here()) if host.via is Way.SRUN else host for host in made.hosts)
    return replace(made, hosts=tuple(hosts))


def chosen(selection: Selection, caller: Caller) -> Inventory:
    """Return the inventory of a selection, with its hosts alone."""
    return narrow(load(selection.hosts, caller), selection.only, selection.exclude)


def _of_file(wanted: str | None, caller: Caller) -> Inventory:
    path = locate(wanted)
    if not os.path.lexists(path):
        why = f"it was looked for in {Path.cwd()} and every folder above it"
        hint = "`orchestrate init gpu-01 gpu-02` writes one for these hosts; or name a file with --hosts"
        if wanted is not None:
            why = "a single word after --hosts is a file"
            hint = "name a file, or hosts with commas: `--hosts gpu-01,gpu-02`, or `--hosts gpu-01,` for one"
        raise UsageError(f"there is no {path}", why=why, hint=hint)
    made = config.load(path, ours=wanted is None)
    if wanted is None and path != Path(NAME):
        caller.tell(f"inventory: {path}")
    return made


def locate(wanted: str | None) -> Path:
    """The file; `hosts.toml`, as it would be here, when there is none here or above."""
    if wanted is not None:
        return Path(wanted)
    here = Path.cwd()
    # A folder, or a link that leads nowhere, is not passed by for one above.
    files = (folder / NAME for folder in (here, *here.parents) if os.path.lexists(folder / NAME))
    return Path(os.path.relpath(next(files, NAME)))


def named_hosts(wanted: str | None) -> tuple[str, ...]:
    """The hosts of `--hosts gpu-01,gpu-02`; () when it is the name of a file.

    One host alone is written with a comma behind it: a single word is taken for a missing file.
    """
    if wanted is None or "/" in wanted or wanted.endswith(".toml") or Path(wanted).exists():
        return ()
    try:
        return ranges.expand_all(wanted) if re.search(r"[,[\]]", wanted) else ()
    except ValueError as error:
        raise misread("--hosts", wanted, error) from error


def is_there(wanted: str | None) -> bool:
    """Return True if `load` would find hosts."""
    return wanted == SLURM or bool(named_hosts(wanted)) or locate(wanted).exists()


def host_of(ssh: str, ssh_config: str | None = None) -> Host:
    """Make the host that `ssh` leads to, with the HostName of ssh_config as its address. Raise Wrong."""
    target = read_target(ssh)
    name = read_name(target.host)
    host = Host(name, target.host, "127.0.0.1", target.user, target.port, ssh_config=ssh_config)
    if host.is_local:
        return host
    try:
        address = resolve(host).hostname
    except HostError:  # which is said to whoever connects
        address = host.ssh
    # A name that is complete ends with a dot, and no address in hosts.toml does.
    return replace(host, address=read_address(address.removesuffix(".")))


def _of_job(caller: Caller) -> Inventory:
    """An inventory of the nodes of a Slurm job; all but the hosts of a hosts.toml are its settings."""
    job = slurm.job_here()
    tables = _tables(slurm.allocation(job))
    path = locate(None)
    settings = path.is_file()
    found = config.load(path, ours=True, hosts=tables) if settings else config.parse(tables, "--hosts slurm")
    names = ranges.fold(host.name for host in found.hosts)
    caller.tell(f"hosts: {names}, of Slurm job {job}; settings: {path if settings else 'none'}")
    return found


def _of_names(words: tuple[str, ...], caller: Caller) -> Inventory:
    """An inventory of these hosts alone, whose addresses are the HostNames that ssh_config gives them."""
    hosts = []
    try:
        for word in words:
            host = host_of(word)
            # With other machines it is this one's name, which they may know: of itself `local` is nowhere.
            mixed = host.is_local and set(words) != {LOCAL}
            address = socket.gethostname() if mixed else host.address
            hosts.append({"name": host.name, "ssh": word, "address": address})
    except Wrong as wrong:
        raise UsageError(f"--hosts {','.join(words)}: {wrong}", hint="`--hosts gpu-01,gpu-02`") from wrong
    inventory = config.parse(_tables(hosts), "--hosts")
    names = ranges.fold(host.name for host in inventory.hosts)
    caller.tell(f"hosts: {names}, as --hosts names them; no file is read")
    return inventory


def _tables(hosts: Iterable[Mapping[str, object]]) -> str:
    """Return hosts as tables of hosts.toml."""
    rows = (["[[host]]", *(f"{key} = {toml(value)}" for key, value in host.items())] for host in hosts)
    return "\n".join(line for row in rows for line in row)
