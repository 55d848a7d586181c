"""`orchestrate init`: look at the hosts that there are, and write a hosts.toml of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orchestrator
from orchestrator import ranges
from orchestrator.cli.args import readings
from orchestrator.cli.desk.out import say, tell
from orchestrator.errors import ExitStatus, HostError, SeveralErrors, UsageError
from orchestrator.node.base.fault import reason
from orchestrator.text import count, plain, size

if TYPE_CHECKING:
    from orchestrator.cli.desk.choosing import Candidate
    from orchestrator.model import Host, Inventory
    from orchestrator.phases.survey import Machine

_TASK_PORT = 2222
SUMMARY = "look at the hosts that you have, and write a hosts.toml of them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "host",
        nargs="*",
        metavar="HOST",
        help="as you would write it for ssh: gpu-[01-04], train@head:2200",
    )
    parser.add_argument(
        "--hostfile",
        metavar="FILE",
        help="take the hosts of a hostfile (`host slots=4`) or an Ansible inventory; HOST chooses among them",
    )
    parser.add_argument("--ssh-config", metavar="FILE", help="in place of ~/.ssh/config")
    parser.add_argument(
        "--to", default="hosts.toml", metavar="FILE", help="where to write (default: hosts.toml)"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--yes",
        action="store_true",
        help="ask nothing: accept host keys that are not known yet",
    )
    parser.add_argument(
        "--task-port",
        type=readings.whole(1, 65_535),
        default=_TASK_PORT,
        metavar="PORT",
        help="where tasks listen (default: 2222; hosts on the same machine get the next ports)",
    )
    parser.add_argument("--no-preflight", action="store_true", help="do not check the hosts at the end")
    parser.add_argument("--example", action="store_true", help="print an inventory with every key, and end")


def main(arguments: argparse.Namespace) -> int:
    from orchestrator import config
    from orchestrator.cli.desk.choosing import choose
    from orchestrator.render.errors import report

    if arguments.example:
        say(*example().removesuffix("\n").split("\n"))
        return int(ExitStatus.OK)
    file = Path(arguments.to)
    if os.path.lexists(file) and not arguments.force:
        raise UsageError(
            f"there is a {file} already",
            why="it is not overwritten",
            hint="`--to other.toml` writes another file, `--force` replaces this one",
        )
    ssh_config = arguments.ssh_config and str(Path(arguments.ssh_config).absolute())
    if ssh_config is not None and not Path(ssh_config).is_file():
        raise UsageError(f"there is no {ssh_config}", hint="name a file with --ssh-config, or leave it out")
    candidates = choose(arguments.host, arguments.hostfile, ssh_config)
    hosts = _hosts(candidates, ssh_config)
    machines, bad = _look(hosts, yes=arguments.yes)
    notes = {name: f"not looked at: {name} {error.what}" for name, error in bad.items()}
    _replace(
        file, text(candidates, hosts, machines, notes, task_port=arguments.task_port, ssh_config=ssh_config)
    )
    say(*_described(machines), f"{file}: {count(len(hosts), 'host')}")
    if bad:
        report(SeveralErrors(bad.values()), sys.stderr)
    made = config.load(file)  # what it cannot say by itself is said now, with its lines
    return _end(file, bad, made, arguments)


def example() -> str:
    """Read hosts.example.toml; in a clone it lies at the top, in a wheel beside the package's files."""
    package = Path(orchestrator.__file__).parent
    files = (package / "hosts.example.toml", package.parent / "hosts.example.toml")
    return next(file for file in files if file.is_file()).read_text(encoding="utf-8")


def _hosts(candidates: Sequence[Candidate], ssh_config: str | None) -> list[Host]:
    from orchestrator.cli.desk.choosing import host_of, hostname
    from orchestrator.config.mistakes import Wrong
    from orchestrator.config.targets import read_address

    try:
        hosts = [host_of(candidate, ssh_config) for candidate in candidates]
        for host in hosts:
            read_address(hostname(host))
    except Wrong as wrong:
        raise UsageError(f"a host {wrong}", hint="`orchestrate init gpu-01 gpu-02`") from wrong
    if twice := [name for name, times in Counter(host.name for host in hosts).items() if times > 1]:
        raise UsageError(f"{twice[0]} is named twice", hint="name every host once")
    return hosts


def _look(hosts: Sequence[Host], *, yes: bool) -> tuple[dict[str, Machine], dict[str, HostError]]:
    from orchestrator.cli.desk.choosing import hostname
    from orchestrator.cli.desk.trust import connect
    from orchestrator.phases.survey import survey

    fleet, bad = connect(hosts, yes=yes)
    with contextlib.closing(fleet):
        machines, silent = survey(fleet, {host.name: hostname(host) for host in hosts})
    return machines, {**bad, **silent}


_HEAD = """\
# Made by `orchestrate init`; change it as you like. Every key: `orchestrate init --example`.
#
#   orchestrate preflight        will these machines train together?
#   orchestrate launch           trains; the first host is worker/0, the next worker/1 and so on
#
# ssh is what you would type after `ssh`; address is how the other hosts reach it.

[defaults]
"""
_ENV = """
# No Python with TensorFlow was seen on every host: `orchestrate setup` makes one on all of them.
[env]
"""


def text(
    candidates: Sequence[Candidate],
    hosts: Sequence[Host],
    machines: Mapping[str, Machine],
    notes: Mapping[str, str],
    *,
    task_port: int,
    ssh_config: str | None,
) -> str:
    """Write a file that `config.parse` reads: all that was found out is in it, and where it comes from."""
    from orchestrator.checks.cluster import state_for
    from orchestrator.cli.desk.choosing import hostname
    from orchestrator.config.targets import is_loopback
    from orchestrator.phases.survey import choose_addresses, choose_python

    python = choose_python(machines.values())
    made = bool(machines) and python is None
    addresses = choose_addresses(machines) if machines else {}
    parts = [_HEAD]
    if python is not None:
        parts.append(f"python = {_quoted(python.path)}   # has TensorFlow {python.tensorflow}\n")
    elif not machines:
        parts.append('# python = "~/venv/bin/python"   # the Python that trains; no host was looked at\n')
    parts.append('# workdir = "~/orchestrate"   # code and runs on the hosts (this is the default)\n')
    parts += [f"ssh_config = {_quoted(ssh_config)}\n"] if ssh_config else []
    parts += [_ENV] if made else []
    ports: Counter[str] = Counter()
    for candidate, host in zip(candidates, hosts, strict=True):
        machine = machines.get(host.name)
        address = addresses.get(host.name) or hostname(host)
        place = "this machine" if is_loopback(address) else machine.place if machine else address
        keys = {"name": candidate.name, "ssh": candidate.ssh, "address": address}
        keys |= {"identity": host.identity} if host.identity else {}
        lines = [f"# {plain(notes[host.name])}"] if host.name in notes else []
        lines += [f"{key} = {_quoted(value)}" for key, value in keys.items()]
        if (port := task_port + ports[place]) != _TASK_PORT:
            lines.append(f"task_port = {port}")
        if ports[place]:
            state = _quoted(state_for(candidate.name))
            lines.append(f"state = {state}   # each entry for a machine needs its own")
        lines += [f"tasks = {candidate.tasks}"] if candidate.tasks != 1 else []
        if machine and machine.gpus:
            kinds = ", ".join(dict.fromkeys(map(plain, machine.gpus)))
            devices = f"devices = {list(range(len(machine.gpus)))}   # {kinds}"
            named = made and len(machine.gpus) % candidate.tasks == 0
            gpus = f"{devices}; with it [env] takes the build for GPUs"
            lines.append(gpus if named else f"# {devices} (default: all of them)")
        parts += ["\n[[host]]\n", *(f"{line}\n" for line in lines)]
        ports[place] += candidate.tasks
    return "".join(parts)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _replace(file: Path, content: str) -> None:
    """Write all of the file or nothing; it says what is run, so nobody else may write it."""
    from orchestrator.plainfile import write_atomically

    try:
        write_atomically(file, content.encode(), mode=0o644)
    except OSError as error:
        why = reason(error)
        raise UsageError(f"cannot write {file}", why=why, hint="name another place with --to") from error


def _described(machines: Mapping[str, Machine]) -> list[str]:
    """Describe the machines: hosts that are alike in one line, with the least room of any."""
    alike: dict[str, list[str]] = {}
    for name, machine in machines.items():
        gpus = [f"{times} x {gpu}" for gpu, times in Counter(machine.gpus).items()] or ["no GPU"]
        python = machine.pythons[0] if machine.pythons else None
        training = f"TensorFlow {python.tensorflow} in {python.path}" if python else "no TensorFlow seen"
        alike.setdefault(", ".join([*gpus, training]), []).append(name)
    return [
        f"{ranges.fold(names)}: {kind}, {size(min(machines[name].free for name in names))} free"
        for kind, names in alike.items()
    ]


def _end(
    file: Path, bad: Mapping[str, HostError], inventory: Inventory, arguments: argparse.Namespace
) -> int:
    """Run preflight when all could be logged in to; else say what keeps us from it."""
    from orchestrator.cli import preflight
    from orchestrator.cli.desk.inventory import NAME

    own = None if file == Path(NAME) else str(file)
    to_name = f" --hosts {shlex.quote(own)}" if own else ""
    if bad:
        tell(f"{file} names them all the same; when they answer: orchestrate preflight{to_name}")
        return int(ExitStatus.CLUSTER)
    if inventory.environment is not None:
        then = f"then: orchestrate preflight{to_name}"
        tell(f"next: orchestrate setup{to_name} makes their Python environment; {then}")
        return int(ExitStatus.OK)
    if arguments.no_preflight:
        return int(ExitStatus.OK)
    return preflight.main(argparse.Namespace(hosts=own, only=None, exclude=None, json=False))
