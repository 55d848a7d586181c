"""`orchestrate init`: examine hosts, and write a hosts.toml for them."""

import argparse
import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from orchestrator import ranges
from orchestrator.cli import preflight
from orchestrator.cli.args import options
from orchestrator.cli.desk.out import say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.config import load as config
from orchestrator.errors import (
    ClusterError,
    ExitStatus,
    HostError,
    SeveralErrors,
    UsageError,
    status_of,
    unless_refused,
)
from orchestrator.model import Inventory
from orchestrator.phases.survey import Machine, survey, unfit
from orchestrator.plainfile import write_atomically
from orchestrator.render.errors import report
from orchestrator.text import count, size
from orchestrator.verbs.environment import locked
from orchestrator.verbs.init import connect, example, read_hosts, text
from orchestrator.verbs.inventory import NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "as you would type it after ssh: gpu-[01-04], train@head:2200"
    parser.add_argument("host", nargs="*", metavar="HOST", help=text)
    parser.add_argument("--ssh-config", metavar="FILE", help="a file to use instead of ~/.ssh/config")
    text = "where to write (default: hosts.toml)"
    parser.add_argument("--to", default="hosts.toml", metavar="FILE", help=text)
    options.flag(parser, "--yes", "do not prompt; accept new host keys")
    options.flag(parser, "--no-preflight", "skip the preflight at the end")
    options.flag(parser, "--example", "print an inventory with every key, and exit")


def main(arguments: argparse.Namespace) -> int:
    if arguments.example:
        say(*example().removesuffix("\n").split("\n"))
        return ExitStatus.OK
    file = Path(arguments.to)
    if os.path.lexists(file):
        raise UsageError(
            f"{file} already exists",
            why="it is not overwritten",
            hint="`--to other.toml` writes another file",
        )
    ssh_config = arguments.ssh_config and str(Path(arguments.ssh_config).absolute())
    if ssh_config is not None:
        config.check_ssh_config(Path(ssh_config))
    hosts, person = read_hosts(arguments.host, ssh_config), Person(yes=arguments.yes)
    fleet, bad = connect(list(hosts.values()), person, person.accepts)
    with contextlib.closing(fleet):
        machines, silent = survey(fleet, {host.name: host.address for host in hosts.values()})
    bad |= silent
    notes = {name: f"skipped: {name} {error.what}" for name, error in bad.items()}
    # All of it or nothing. It contains commands, so no other user may write it.
    with unless_refused(f"cannot write {file}", "name a file in another folder with --to"):
        write_atomically(file, text(hosts, machines, notes, ssh_config).encode(), mode=0o644)
    say(*_described(machines), f"{file}: {count(len(hosts), 'host')}")
    if bad:
        report(SeveralErrors(bad.values()), sys.stderr)
    made = config.load(file)  # what it does not contain is printed now, with its lines
    return _end(file, bad, machines, made, arguments)


def _described(machines: Mapping[str, Machine]) -> list[str]:
    """Describe the machines: identical hosts on one line, with the smallest disk space of any."""
    alike: dict[str, list[str]] = {}
    for name, machine in machines.items():
        gpus = [f"{times} x {gpu}" for gpu, times in Counter(machine.gpus).items()] or ["no GPU"]
        python = machine.pythons[0] if machine.pythons else None
        training = f"TensorFlow {python.version} in {python.path}" if python else "no TensorFlow found"
        alike.setdefault(", ".join([*gpus, training]), []).append(name)
    return [
        f"{ranges.fold(names)}: {kind}, {size(min(machines[name].free for name in names))} free"
        for kind, names in alike.items()
    ]


def _end(
    file: Path,
    bad: Mapping[str, HostError],
    machines: Mapping[str, Machine],
    inventory: Inventory,
    arguments: argparse.Namespace,
) -> int:
    """Run preflight if all hosts accepted a login; otherwise report what prevents it."""
    own = None if file == Path(NAME) else str(file)
    to_name = f" --hosts {shlex.quote(own)}" if own else ""
    if bad:
        tell(f"{file} includes them anyway; once they respond: orchestrate preflight{to_name}")
        return status_of(bad.values())
    if inventory.environment is not None:
        with contextlib.suppress(ClusterError):  # setup reports the reason and a fix
            plan, lock = locked(inventory.environment)
            tell(*unfit(machines, lock, plan))
        then = f"then: orchestrate preflight{to_name}"
        tell(f"next: orchestrate setup{to_name} creates their Python environment; {then}")
        return ExitStatus.OK
    if arguments.no_preflight:
        return ExitStatus.OK
    return preflight.main(argparse.Namespace(hosts=own, only=None, exclude=None, json=False))
