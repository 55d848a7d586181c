"""The inventory of a command line: a file, one in a folder above, or the hosts named by `--hosts`."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import shlex
import socket
from pathlib import Path

from orchestrator import config, ranges, slurm
from orchestrator.cli.desk.out import tell
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import read_target
from orchestrator.errors import HostError, UsageError
from orchestrator.model import LOCAL, Host, Inventory, Way
from orchestrator.planning.selection import misread

NAME = "hosts.toml"
SLURM = "slurm"  # the nodes of the job that we are in; ./slurm is a file
_FILES = (".toml", ".tml", ".yaml", ".yml", ".ini", ".json", ".txt", ".cfg", ".conf")


def load(wanted: str | None) -> Inventory:
    """Return what `--hosts` says, or the hosts.toml of this folder or of one above it; raise UsageError."""
    return _in_job(_of_job() if wanted == SLURM else _load(wanted))


def _load(wanted: str | None) -> Inventory:
    if wanted is not None and (named := named_hosts(wanted)):
        return _of_names(named)
    path = locate(wanted)
    if path.is_symlink() and not path.exists():
        raise UsageError(
            f"{path} is a link that leads nowhere",
            why=f"it names {os.readlink(path)}",
            hint=f"`ls -l {shlex.quote(str(path))}`; make it anew, or name another file with --hosts",
        )
    if wanted is not None and not path.exists():
        _check_name(wanted)
    if wanted is None and not path.exists():
        raise UsageError(
            f"there is no {NAME}",
            why=f"it was looked for in {_looked()}",
            hint="`orchestrate init gpu-01 gpu-02` writes one for these hosts; or name a file with --hosts",
        )
    made = config.load(path, ours=wanted is None)
    if wanted is None and path != Path(NAME):
        tell(f"inventory: {path}")
    return made


def locate(wanted: str | None) -> Path:
    """The file; `hosts.toml`, as it would be here, when there is none here or above."""
    if wanted is not None:
        return Path(wanted)
    for folder in _folders():
        file = folder / NAME
        if os.path.lexists(file):  # a folder, or a link that leads nowhere, is not passed by for one above
            return Path(os.path.relpath(file))
    return Path(NAME)


def named_hosts(wanted: str) -> tuple[str, ...]:
    """The hosts of `--hosts gpu-01,gpu-02`; () when it is the name of a file.

    One host alone is written with a comma behind it: a single word is taken for a missing file.
    """
    if "/" in wanted or wanted.endswith(".toml") or Path(wanted).exists():
        return ()
    if len(words := wanted.split()) > 1:
        raise UsageError(
            f"--hosts {wanted!r} is neither a file nor hosts",
            why="commas stand between hosts",
            hint=f"`--hosts {','.join(word.strip(',') for word in words)}`",
        )
    if not re.search(r"[,[\]]", wanted):
        return ()
    if not wanted.strip(","):
        raise UsageError(f"--hosts {wanted} names no host", hint="`--hosts gpu-01,gpu-02`")
    try:
        return ranges.expand_all(wanted)
    except ValueError as error:
        raise misread("--hosts", wanted, error) from error


def _check_name(wanted: str) -> None:
    """Raise UsageError for a name of no file that is a host, or near to that of a file."""
    folder = Path(wanted).parent
    files = [file.name for file in sorted(folder.glob("*.toml"))[:100]]
    near = difflib.get_close_matches(Path(wanted).name, files, 1, cutoff=0.8)
    if near:
        raise UsageError(f"there is no {wanted}", hint=f"`--hosts {shlex.quote(str(folder / near[0]))}`")
    if "/" not in wanted and not wanted.endswith(_FILES):
        raise UsageError(
            f"there is no {wanted}",
            why="a single word after --hosts is a file; commas make hosts of it",
            hint=f"`--hosts {shlex.quote(wanted)},` means the host, with the comma",
        )


def is_there(wanted: str | None) -> bool:
    """Return True if `load` would find hosts."""
    return bool(wanted and (wanted == SLURM or named_hosts(wanted))) or locate(wanted).exists()


def _of_job() -> Inventory:
    """An inventory of the nodes of a Slurm job; all but the hosts of a hosts.toml are its settings."""
    allocation = slurm.allocation(slurm.job_here())
    tables = slurm.tables(allocation)
    path = locate(None)
    settings = path.is_file()
    found = config.load(path, ours=True, hosts=tables) if settings else config.parse(tables, "--hosts slurm")
    names = ranges.fold(host.name for host in found.hosts)
    tell(f"hosts: {names}, of Slurm job {allocation.job}; settings: {path if settings else 'none'}")
    return found


def _in_job(inventory: Inventory) -> Inventory:
    """Note the job of hosts that srun leads to: whoever keeps the run later is perhaps not in it."""
    hosts = (
        dataclasses.replace(host, job=slurm.job_here()) if host.via is Way.SRUN else host
        for host in inventory.hosts
    )
    return dataclasses.replace(inventory, hosts=tuple(hosts))


def _of_names(words: tuple[str, ...]) -> Inventory:
    """An inventory of these hosts alone, whose addresses are the HostNames that ssh_config gives them."""
    from orchestrator.ssh.resolve import resolve

    text = ""
    # With other machines it is this one's name, which they may know: of itself `local` resolves nowhere.
    here = "127.0.0.1" if set(words) == {LOCAL} else socket.gethostname()
    try:
        for word in words:
            target = read_target(word)
            host = Host(target.host, ssh=target.host, address="", user=target.user, port=target.port)
            keys = {
                "name": target.host,
                "ssh": word,
                "address": here if host.is_local else resolve(host).hostname,
            }
            text += "[[host]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        inventory = config.parse(text, "--hosts")
    except HostError as error:
        raise UsageError(f"--hosts: {error.host} {error.what}", why=error.why, hint=error.hint) from error
    except Wrong as wrong:
        raise UsageError(f"--hosts {','.join(words)}: {wrong}", hint="`--hosts gpu-01,gpu-02`") from wrong
    tell(
        f"hosts: {ranges.fold(host.name for host in inventory.hosts)}, as --hosts names them; no file is read"
    )
    return inventory


def _folders() -> list[Path]:
    here = Path.cwd()
    return [here, *here.parents]


def _looked() -> str:
    first, *others = _folders()
    return f"{first}" + (" and every folder above it" if others else "")
