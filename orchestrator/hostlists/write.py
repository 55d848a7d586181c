"""The text of a new hosts.toml. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.hostlists.machine import Pythons, Room
from orchestrator.model import Host
from orchestrator.text import plain, size


@dataclass(frozen=True)
class HostEntry:
    """One [[host]], and what a person should know of it."""

    name: str
    ssh: str
    address: str
    task_port: int
    tasks: int = 1
    identity: str = ""  # a private key, where a list names one
    state: str = ""  # where another entry for the machine has the default one
    gpus: tuple[str, ...] = ()
    python: str = ""
    note: str = ""  # why it could not be looked at


@dataclass(frozen=True)
class Whole:
    """Keys that hold for all hosts."""

    pythons: Pythons
    workdir: Room | None
    ssh_config: str | None
    looked: bool  # whether any host could be looked at

    @property
    def env(self) -> bool:
        """Return True if an environment has to be made."""
        return self.looked and self.pythons == Pythons()


def text(entries: Sequence[HostEntry], whole: Whole) -> str:
    """A file that `config.parse` reads; every value that was found out is there, and where it comes from."""
    parts = [_HEAD, "[defaults]\n" + "".join(_defaults(whole))]
    if whole.env:
        parts.append(_ENV)
    parts += [
        "[[host]]\n" + "".join(f"{line}\n" for line in _host(entry, env=whole.env)) for entry in entries
    ]
    return "\n".join(parts)


_HEAD = """\
# Made by `orchestrate init`; change it as you like. Every key: `orchestrate init --example`.
#
#   orchestrate preflight        will these machines train together?
#   orchestrate launch           trains; the first host is worker/0, the next worker/1 and so on
#
# ssh is what you would type after `ssh`; address is how the other hosts reach it.
"""

_ENV = """\
# No Python with TensorFlow was seen on every host: `orchestrate setup` makes one on all of them.
[env]
"""


def _defaults(whole: Whole) -> list[str]:
    lines = []
    python = whole.pythons.common
    if python is not None:
        lines.append(f"python = {_string(python.path)}   # has TensorFlow {plain(python.tensorflow)}\n")
    elif not whole.looked:
        lines.append('# python = "~/venv/bin/python"   # the Python that trains; no host was looked at\n')
    if whole.workdir is not None:
        room = f"{size(whole.workdir.free)} free there; the home of a host has little room"
        lines.append(f"workdir = {_string(whole.workdir.path + '/orchestrate')}   # {room}\n")
    else:
        lines.append('# workdir = "~/orchestrate"   # code and runs on the hosts (this is the default)\n')
    if whole.ssh_config:
        lines.append(f"ssh_config = {_string(whole.ssh_config)}\n")
    return lines


def _host(entry: HostEntry, *, env: bool) -> list[str]:
    lines = [f"# {plain(entry.note)}"] if entry.note else []
    lines.append(f"name = {_string(entry.name)}")
    lines.append(f"ssh = {_string(entry.ssh)}")
    lines.append(f"address = {_string(entry.address)}")
    if entry.identity:
        lines.append(f"identity = {_string(entry.identity)}")
    if entry.task_port != Host.task_port:
        lines.append(f"task_port = {entry.task_port}")
    if entry.state:
        lines.append(f"state = {_string(entry.state)}   # each entry for a machine needs its own")
    if entry.tasks != 1:
        lines.append(f"tasks = {entry.tasks}")
    if entry.python:
        lines.append(f"python = {_string(entry.python)}")
    if entry.gpus:
        kinds = ", ".join(dict.fromkeys(plain(gpu) for gpu in entry.gpus))
        devices = f"devices = {list(range(len(entry.gpus)))}   # {kinds}"
        if env and len(entry.gpus) % entry.tasks == 0:
            lines.append(f"{devices}; with it [env] takes the build for GPUs")
        else:
            lines.append(f"# {devices} (default: all of them)")
    return lines


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
