"""`init`: examine hosts, and write a hosts.toml for them; or use what was discovered for one launch."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

import orchestrator
from orchestrator import ranges
from orchestrator.checks.cluster import state_for
from orchestrator.config import load as config
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import is_loopback
from orchestrator.errors import HostErrors, SeveralErrors, UsageError
from orchestrator.fleet import Fleet
from orchestrator.frameworks import FRAMEWORKS, Framework
from orchestrator.model import DEFAULT_PYTHON, Host, RunPlan
from orchestrator.phases.survey import Machine, choose_addresses, choose_python, survey
from orchestrator.quoting import toml
from orchestrator.requests import LaunchRequest
from orchestrator.ssh.hostkeys import HostKeyRefused, KnownHosts, Trust
from orchestrator.text import plain
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import logins, new_fleet
from orchestrator.verbs.inventory import host_of
from orchestrator.verbs.launch import prepare

# Returns True to add new keys, by host, to known_hosts; the number counts different keys.
Accepts: TypeAlias = Callable[[Mapping[str, HostKeyRefused], int], bool]
_NAMES = "`orchestrate init gpu-01 gpu-02`, with your own hosts' names"
_ROUNDS = 4  # a bastion's key is seen before that of the host behind it


def example() -> str:
    """Return hosts.example.toml; it is at the top of a clone, and next to the package's files in a wheel."""
    package = Path(orchestrator.__file__).parent
    files = (package / "hosts.example.toml", package.parent / "hosts.example.toml")
    return next(file for file in files if file.is_file()).read_text(encoding="utf-8")


def read_hosts(names: Sequence[str], ssh_config: str | None) -> dict[str, Host]:
    """Return the hosts in `words`, each under its argument for `ssh`; raise UsageError."""
    try:
        hosts = {ssh: host_of(ssh, ssh_config) for word in names for ssh in ranges.expand_all(word)}
    except (ValueError, Wrong) as error:
        raise UsageError(f"a host {error}", hint=_NAMES) from error
    if not hosts:
        raise UsageError("init needs hosts", why="none is given", hint=_NAMES)
    if twice := [name for name, times in Counter(host.name for host in hosts.values()).items() if times > 1]:
        raise UsageError(f"{twice[0]} is named twice", hint="name every host once")
    return hosts


def connect(hosts: Sequence[Host], caller: Caller, accepts: Accepts) -> tuple[Fleet, HostErrors]:
    """Open sessions with all hosts, and again with those whose new keys are accepted.

    A key that differs from the known one is never offered.
    """
    secrets = logins(hosts, caller)
    done: set[bytes] = set()
    for _ in range(_ROUNDS):
        fleet = new_fleet(secrets)
        bad = fleet.connect(hosts)
        refusals = {name: refusal for name, error in bad.items() if (refusal := _refusal(error))}
        new = {name: key for name, key in refusals.items() if key.blob not in done}
        keys = {(refusal.target.key_names[0], refusal.blob): refusal for refusal in new.values()}
        if not new or not accepts(new, len({blob for _, blob in keys})):
            break
        done.update(blob for _, blob in keys)
        for refusal in keys.values():
            KnownHosts().remember(refusal.target, refusal.blob)
        fleet.close()
    return fleet, bad


def _refusal(error: BaseException | None) -> HostKeyRefused | None:
    """Return the refusal of a new key in an error's chain, including a bastion's."""
    causes: list[BaseException] = []  # an error that was raised again may be its own cause
    while error is not None and error not in causes and not isinstance(error, HostKeyRefused):
        causes.append(error)
        error = error.__cause__
    return error if isinstance(error, HostKeyRefused) and error.trust is Trust.UNKNOWN else None


_HEAD = """\
# Written by `orchestrate init`; edit it as you like. Every key: `orchestrate init --example`.
#
#   orchestrate preflight        will these machines train together?
#   orchestrate launch           trains; the first host is worker/0, the next worker/1 and so on
#
# ssh is what you would type after `ssh`; address is how the other hosts reach it.

[defaults]
"""
_ENV = """
# The hosts have no common Python with TensorFlow of their own; `orchestrate setup` creates this one.
[env]
# packages = ["torch", "numpy"]   # for PyTorch; the default is TensorFlow and what its tutorials need
"""


def text(
    hosts: Mapping[str, Host],
    machines: Mapping[str, Machine],
    notes: Mapping[str, str],
    ssh_config: str | None,
    packages: Sequence[str] = (),
) -> str:
    """Return the text of a hosts.toml with everything that was discovered.

    `packages` are those of the [env], if there is one and its default does not fit.
    """
    python = choose_python(machines.values())
    made = bool(machines) and python is None
    addresses = choose_addresses(machines) if machines else {}
    parts = [_HEAD]
    if python is not None:
        parts.append(f"python = {toml(python.path)}   # has TensorFlow {python.version}\n")
    elif not machines:
        parts.append('# python = "~/venv/bin/python"   # the Python for the tasks; no host was examined\n')
    parts.append('# workdir = "~/orchestrate"   # code and runs on the hosts (this is the default)\n')
    parts += [f"ssh_config = {toml(ssh_config)}\n"] if ssh_config else []
    parts += [_ENV, *[f"packages = {toml(packages)}\n"] * bool(packages)] if made else []
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
            gpus = f"{devices}; with it, [env] installs the GPU build"
            lines.append(gpus if made else f"# {devices} (default: all of them)")
        parts += ["\n[[host]]\n", *(f"{line}\n" for line in lines)]
        entries[place] += 1
    return "".join(parts)


def surveyed(
    request: LaunchRequest,
    words: Sequence[str],
    caller: Caller,
    accepts: Accepts,
    agrees: Callable[[str], bool],
) -> LaunchRequest:
    """Examine the hosts named in `words`: their addresses, a Python with the framework, or else an [env].

    The caller has to accept new host keys, and the creation of an environment.
    """
    inventory = request.inventory
    addresses = {host.name: host.address for host in inventory.hosts}
    hosts = {
        ssh: replace(host, address=addresses[host.name])
        for ssh, host in read_hosts(words, None).items()
        if host.name in addresses
    }
    if all(host.is_local for host in hosts.values()):
        return request
    made = prepare(request, caller, resolves=False)  # reject mistakes first
    fleet, bad = connect(list(hosts.values()), caller, accepts)
    framework = FRAMEWORKS[made.plan.recipe.framework]
    with contextlib.closing(fleet):
        machines, silent = survey(fleet, addresses, framework.package)
    if bad := bad | silent:
        raise SeveralErrors(bad.values())
    packages = _packages(framework, made.plan, gpus=any(machine.gpus for machine in machines.values()))
    examined = config.parse(text(hosts, machines, {}, None, packages), inventory.source)
    python, names = choose_python(machines.values()), ranges.fold(machines)
    has_header = made.request.inventory.environment is not None
    if has_header or not framework.package:
        plain = tuple(replace(host, python=DEFAULT_PYTHON) for host in examined.hosts)
        examined = replace(examined, hosts=plain, environment=None)
    elif python is not None:
        caller.tell(f"{names}: {framework.title} {python.version} in {python.path}")
    elif choose_python(machines.values(), made=True) is None and not agrees(
        f"{names}: no common Python with {framework.title}; create an environment, as `setup` does?"
    ):
        examined = replace(examined, environment=None)
    return replace(request, inventory=examined)


def _packages(framework: Framework, plan: RunPlan, *, gpus: bool) -> tuple[str, ...]:
    """Return the packages of an [env] for the program; () for its default list."""
    if not framework.installs:
        return ()
    imported = (name for name, module in framework.packages.items() if module in plan.ahead.imports)
    names = dict.fromkeys((*framework.installs, *imported))
    return tuple("jax[cuda12]" if name == "jax" and gpus else name for name in names)
