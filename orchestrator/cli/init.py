"""`orchestrate init`: look at the hosts that there are, and write a hosts.toml of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import orchestrator
from orchestrator import ranges
from orchestrator.checks.cluster import state_for
from orchestrator.cli import preflight
from orchestrator.cli.desk.out import say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.config import load as config
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import is_loopback
from orchestrator.errors import ClusterError, ExitStatus, HostError, SeveralErrors, UsageError
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Inventory
from orchestrator.phases.survey import Machine, choose_addresses, choose_python, survey, unfit
from orchestrator.plainfile import write_atomically
from orchestrator.quoting import toml
from orchestrator.render.errors import report
from orchestrator.ssh.hostkeys import HostKeyRefused, KnownHosts, Trust, fingerprint, key_type
from orchestrator.text import count, plain, size
from orchestrator.verbs.asking import logins, new_fleet
from orchestrator.verbs.environment import with_environment
from orchestrator.verbs.inventory import NAME, host_of

_NAMES = "`orchestrate init gpu-01 gpu-02`, with your own hosts' names"
_ROUNDS = 4  # a bastion's key is seen before that of the host behind it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "host",
        nargs="*",
        metavar="HOST",
        help="as you would write it for ssh: gpu-[01-04], train@head:2200",
    )
    parser.add_argument("--ssh-config", metavar="FILE", help="in place of ~/.ssh/config")
    parser.add_argument(
        "--to", default="hosts.toml", metavar="FILE", help="where to write (default: hosts.toml)"
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="ask nothing: accept host keys that are not known yet",
    )
    parser.add_argument("--no-preflight", action="store_true", help="do not check the hosts at the end")
    parser.add_argument("--example", action="store_true", help="print an inventory with every key, and end")


def main(arguments: argparse.Namespace) -> int:
    if arguments.example:
        say(*example().removesuffix("\n").split("\n"))
        return ExitStatus.OK
    file = Path(arguments.to)
    if os.path.lexists(file):
        raise UsageError(
            f"there is a {file} already",
            why="it is not overwritten",
            hint="`--to other.toml` writes another file",
        )
    ssh_config = arguments.ssh_config and str(Path(arguments.ssh_config).absolute())
    if ssh_config is not None and not Path(ssh_config).is_file():
        raise UsageError(f"there is no {ssh_config}", hint="name a file with --ssh-config, or leave it out")
    hosts = read_hosts(arguments.host, ssh_config)
    fleet, bad = _connect(list(hosts.values()), Person(), yes=arguments.yes)
    with contextlib.closing(fleet):
        machines, silent = survey(fleet, {host.name: host.address for host in hosts.values()})
    bad = {**bad, **silent}
    notes = {name: f"not looked at: {name} {error.what}" for name, error in bad.items()}
    # All of it or nothing; it says what is run, so nobody else may write it.
    write_atomically(file, text(hosts, machines, notes, ssh_config).encode(), mode=0o644)
    say(*_described(machines), f"{file}: {count(len(hosts), 'host')}")
    if bad:
        report(SeveralErrors(bad.values()), sys.stderr)
    made = config.load(file)  # what it cannot say by itself is said now, with its lines
    return _end(file, bad, machines, made, arguments)


def example() -> str:
    """Read hosts.example.toml; in a clone it lies at the top, in a wheel beside the package's files."""
    package = Path(orchestrator.__file__).parent
    files = (package / "hosts.example.toml", package.parent / "hosts.example.toml")
    return next(file for file in files if file.is_file()).read_text(encoding="utf-8")


def read_hosts(words: Sequence[str], ssh_config: str | None) -> dict[str, Host]:
    """The hosts that words name, each under what `ssh` would be given; raise UsageError."""
    try:
        hosts = {ssh: host_of(ssh, ssh_config) for word in words for ssh in ranges.expand_all(word)}
    except (ValueError, Wrong) as error:
        raise UsageError(f"a host {error}", hint=_NAMES) from error
    if not hosts:
        raise UsageError("init needs hosts", why="no word names one", hint=_NAMES)
    if twice := [name for name, times in Counter(host.name for host in hosts.values()).items() if times > 1]:
        raise UsageError(f"{twice[0]} is named twice", hint="name every host once")
    return hosts


def _connect(hosts: Sequence[Host], person: Person, *, yes: bool) -> tuple[Fleet, dict[str, HostError]]:
    """Open sessions with all hosts, and with those again whose keys a person accepted, or `yes` accepts.

    A key that differs from the one that is known is never offered.
    """
    secrets = logins(hosts, person)
    done: set[bytes] = set()
    for _ in range(_ROUNDS):
        fleet = new_fleet(secrets)
        bad = fleet.connect(hosts)
        refusals = {name: refusal for name, error in bad.items() if (refusal := _refusal(error))}
        new = {name: one for name, one in refusals.items() if one.blob not in done}
        keys = {(refusal.target.key_names[0], refusal.blob): refusal for refusal in new.values()}
        if not new or not _accepted(new, len({blob for _, blob in keys}), yes=yes):
            break
        done.update(blob for _, blob in keys)
        for refusal in keys.values():
            KnownHosts().remember(refusal.target, refusal.blob)
        fleet.close()
    return fleet, bad


def _refusal(error: BaseException | None) -> HostKeyRefused | None:
    """Return the refusal of a new key that is behind an error, also behind that of a bastion."""
    causes: list[BaseException] = []  # one that was raised again may be its own cause
    while error is not None and error not in causes and not isinstance(error, HostKeyRefused):
        causes.append(error)
        error = error.__cause__
    return error if isinstance(error, HostKeyRefused) and error.trust is Trust.UNKNOWN else None


def _accepted(new: Mapping[str, HostKeyRefused], number: int, *, yes: bool) -> bool:
    """Show the keys, and ask whether they are to be written."""
    tell(f"{count(len(new), 'host')} with a key that no known_hosts file has:")
    width, keys = max(map(len, new)), count(number, "key")
    for name, refusal in new.items():
        place = refusal.target.key_names[0]
        tell(f"  {name:{width}}  {key_type(refusal.blob)} {fingerprint(refusal.blob)}  {place}")
    if yes:
        tell(f"{keys} written to known_hosts, as --yes says")
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        tell("nobody can be asked: `--yes` accepts these keys")
        return False
    tell("Compare the fingerprints with what the machines' owner says (ssh-keygen -l there).")
    sys.stderr.write(f"Write {keys} to known_hosts and continue? [y/N] ")
    sys.stderr.flush()
    if not (answer := sys.stdin.readline()):  # the end of the input is a Ctrl-C
        raise KeyboardInterrupt
    return answer.strip().lower() in {"y", "yes"}


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
    hosts: Mapping[str, Host],
    machines: Mapping[str, Machine],
    notes: Mapping[str, str],
    ssh_config: str | None,
) -> str:
    """Write a file that `config.parse` reads: all that was found out is in it, and where it comes from."""
    python = choose_python(machines.values())
    made = bool(machines) and python is None
    addresses = choose_addresses(machines) if machines else {}
    parts = [_HEAD]
    if python is not None:
        parts.append(f"python = {toml(python.path)}   # has TensorFlow {python.tensorflow}\n")
    elif not machines:
        parts.append('# python = "~/venv/bin/python"   # the Python that trains; no host was looked at\n')
    parts.append('# workdir = "~/orchestrate"   # code and runs on the hosts (this is the default)\n')
    parts += [f"ssh_config = {toml(ssh_config)}\n"] if ssh_config else []
    parts += [_ENV] if made else []
    entries: Counter[str] = Counter()  # of each machine
    for ssh, host in hosts.items():
        machine = machines.get(host.name)
        address = addresses.get(host.name, host.address)
        place = "this machine" if is_loopback(address) else machine.place if machine else address
        keys = {"name": host.name, "ssh": ssh, "address": address}
        lines = [f"# {plain(notes[host.name])}"] if host.name in notes else []
        lines += [f"{key} = {toml(value)}" for key, value in keys.items()]
        if entries[place]:
            lines.append(f"task_port = {host.task_port + entries[place]}")
            state = toml(state_for(host.name))
            lines.append(f"state = {state}   # each entry for a machine needs its own")
        if machine and machine.gpus:
            kinds = ", ".join(dict.fromkeys(map(plain, machine.gpus)))
            devices = f"devices = {list(range(len(machine.gpus)))}   # {kinds}"
            gpus = f"{devices}; with it [env] takes the build for GPUs"
            lines.append(gpus if made else f"# {devices} (default: all of them)")
        parts += ["\n[[host]]\n", *(f"{line}\n" for line in lines)]
        entries[place] += 1
    return "".join(parts)


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
    file: Path,
    bad: Mapping[str, HostError],
    machines: Mapping[str, Machine],
    inventory: Inventory,
    arguments: argparse.Namespace,
) -> int:
    """Run preflight when all could be logged in to; else say what keeps us from it."""
    own = None if file == Path(NAME) else str(file)
    to_name = f" --hosts {shlex.quote(own)}" if own else ""
    if bad:
        tell(f"{file} names them all the same; when they answer: orchestrate preflight{to_name}")
        return ExitStatus.CLUSTER
    if inventory.environment is not None:
        with contextlib.suppress(ClusterError):  # setup says why, and what to try
            _, plan, lock = with_environment(inventory)
            tell(*unfit(machines, lock, plan.index))
        then = f"then: orchestrate preflight{to_name}"
        tell(f"next: orchestrate setup{to_name} makes their Python environment; {then}")
        return ExitStatus.OK
    if arguments.no_preflight:
        return ExitStatus.OK
    return preflight.main(argparse.Namespace(hosts=own, only=None, exclude=None, json=False))
