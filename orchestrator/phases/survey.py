"""Examining machines that are not in an inventory yet: addresses, GPUs, and a Python that can train."""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator import wire
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import ip_of
from orchestrator.config.values import program
from orchestrator.envs import Compatibility, Lock, Platform, fitting
from orchestrator.errors import HostErrors
from orchestrator.fleet import Fleet
from orchestrator.model import EnvironmentPlan
from orchestrator.ranges import fold
from orchestrator.value import Value

_SECONDS = 60.0
_MADE = "~/orchestrate/envs/"
_LONGEST = 1000  # characters of a path
_PLATFORM = re.compile(
    r"platform (?P<machine>\w{1,32}) (?P<libc>musl|glibc-2\.\d{1,3}) (?P<minors>\d{1,2}(?: \d{1,2}){0,30})\n"
)
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+_-]{0,40}")

# Runs in the agent's Python (3.8 or newer) and writes nothing.
_LOOK = r"""
import glob, os, re, sys
CONDAS = ["~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda"]
PLACES = [
    "~/.venvs/*", "~/venvs/*", "~/.virtualenvs/*", "~/venv*", "~/.venv", "~/env", "~/*/.venv", "~/*/venv",
    "~/orchestrate/envs/*", "~/.conda/envs/*", "~/.pyenv/versions/*", "/opt/venv", "/opt/*/venv", "/opt/*",
    "/usr/local",
]
PLACES += [place + part for place in CONDAS for part in ("", "/envs/*")]
NAME = re.compile(sys.argv[1] + r"(?:_cpu|_intel|_rocm)?-([0-9][^-]*)(?:-py[0-9.]+)?\.(?:dist|egg)-info$")
def show(python, folders):
    for folder in folders:
        for name in sorted(map(os.path.basename, glob.glob(os.path.join(folder, sys.argv[1] + "*-info")))):
            if NAME.match(name):
                print(NAME.match(name).group(1), python)
                return
names = [name for place in os.get_exec_path() if os.path.isdir(place) for name in os.listdir(place)]
minors = {int(one.group(1)) for one in map(re.compile(r"python3\.(\d+)$").match, names) if one}
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
minors.add(sys.version_info[1])
print("platform", os.uname().machine, libc.replace(" ", "-") or "musl", *sorted(minors))
show("python3", filter(None, sys.path))
home, done = os.path.expanduser("~") + os.sep, set()
for place in PLACES:
    for prefix in sorted(glob.glob(os.path.expanduser(place))):
        python = os.path.join(prefix, "bin", "python")
        python = python if os.path.exists(python) else python + "3"
        if os.access(python, os.X_OK) and prefix not in done:
            done.add(prefix)
            short = "~/" + python[len(home):] if python.startswith(home) else python
            show(short, glob.glob(os.path.join(prefix, "lib", "python3*", "site-packages")))
"""


class TrainingPython(Value):
    """An interpreter that has the framework, in this version."""

    path: str
    version: str


class Machine(Value):
    hostname: str  # how the controller reaches it: the HostName of ssh_config, or its equivalent
    place: str  # equal for hosts on one machine and network
    addresses: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    pythons: tuple[TrainingPython, ...] = ()
    free: int = 0  # bytes in its home
    platform: Platform | None = None
    minors: tuple[int, ...] = ()  # the versions of Python 3 on its PATH


def survey(
    fleet: Fleet, hostnames: Mapping[str, str], package: str = "tensorflow"
) -> tuple[dict[str, Machine], HostErrors]:
    """Examine all connected hosts, and find Pythons with a package.

    `hostnames` maps each to the name or address that reaches it from here.
    """
    questions = {
        name: wire.Facts(
            python=session.host.agent_python,
            r=False,
            workdir="~",
            packages=(),
            setup=None,
            programs={"pythons": (session.host.agent_python, "-c", _LOOK, package)},
        )
        for name, session in fleet.sessions.items()
    }
    facts = fleet.ask(questions, timeout=_SECONDS)
    machines = {}
    for name, fact in facts.good.items():
        hello = fleet.sessions[name].hello
        machines[name] = Machine(
            hostname=hostnames[name],
            place=f"{hello.boot_id} {hello.netns}",
            addresses=tuple(interface.ip for interface in fact.addresses),
            gpus=tuple(gpu.name for gpu in fact.gpus),
            pythons=tuple(pythons_of(fact.answers.get("pythons", ""))),
            free=fact.disk.workdir.free,
            **_platform(fact.answers.get("pythons", "")),
        )
    return machines, dict(facts.bad)


def pythons_of(answer: str) -> Iterator[TrainingPython]:
    """Read a host's reply; values that hosts.toml cannot contain are dropped: Pythons are suggestions."""
    for line in answer.splitlines():
        version, _, path = line.partition(" ")
        try:
            if len(path) <= _LONGEST and _VERSION.fullmatch(version):
                yield TrainingPython(program(path), version)
        except Wrong:
            continue


def _platform(answer: str) -> dict[str, Any]:
    """Read the first line of a host's reply; {} for anything else."""
    match = _PLATFORM.match(answer)
    if not match:
        return {}
    libc = match["libc"].replace("-", " ")
    own = Platform(match["machine"], "" if libc == "musl" else libc)
    return {"platform": own, "minors": tuple(map(int, match["minors"].split()))}


def unfit(machines: Mapping[str, Machine], lock: Lock, plan: EnvironmentPlan) -> list[str]:
    """Return lines about hosts on which no Python has wheels of all packages; raise ClusterError."""
    fits = {
        platform: fitting(lock, platform, plan)
        for platform in {m.platform for m in machines.values()}
        if platform
    }
    groups: dict[tuple[Compatibility, tuple[int, ...]], list[str]] = {}
    for name, machine in machines.items():
        if machine.platform and not set(machine.minors) & set(fits[machine.platform].minors):
            groups.setdefault((fits[machine.platform], machine.minors), []).append(name)
    lines = []
    for (fit, minors), names in groups.items():
        missing = f"no wheel of {fit.missing(f'3.{minors[-1]}')} for Python 3.{minors[-1]}"
        then = f"setup sends Python 3.{fit.minors[-1]}" if fit.minors else "nor for any other Python"
        lines.append(f"{fold(names)}: {missing}; {then}")
    return lines


def choose_python(machines: Iterable[Machine], *, made: bool = False) -> TrainingPython | None:
    """Return the first Python that all hosts have, by path and framework version; None: an [env] is needed.

    `made` selects one that an [env] created, which is of use only with that [env].
    """
    first, *others = [machine.pythons for machine in machines] or [()]
    common = (python for python in first if all(python in pythons for pythons in others))
    return next((python for python in common if python.path.startswith(_MADE) is made), None)


def choose_addresses(machines: Mapping[str, Machine]) -> dict[str, str]:
    """Return the address by which the others reach each host.

    That is ssh's address if it is one of the machine's own (not so behind a forwarded port or NAT);
    otherwise its own address in a network that contains all of them. Hosts for which neither is known are
    left out.
    """
    if len({machine.place for machine in machines.values()}) == 1:
        return {name: machine.hostname for name, machine in machines.items() if ip_of(machine.hostname)}
    direct = {
        name: machine.hostname
        for name, machine in machines.items()
        if machine.hostname in machine.addresses and (ip := ip_of(machine.hostname)) and not ip.is_loopback
    }
    if len(direct) == len(machines) == len(set(direct.values())):
        return direct
    return direct | _shared(machines)


def _shared(machines: Mapping[str, Machine]) -> dict[str, str]:
    """Return an address of every host in the smallest network with one of each; {} without such."""
    times = Counter(ip for machine in machines.values() for ip in set(machine.addresses))
    # An address that several hosts have, such as docker's bridge, leads nowhere.
    own = {
        name: [
            ip
            for text in machine.addresses
            if times[text] == 1 and isinstance(ip := ip_of(text), ipaddress.IPv4Address)
            if not (ip.is_loopback or ip.is_link_local)
        ]
        for name, machine in machines.items()
    }
    for bits in (24, 20, 16, 8):
        inside = [{int(ip) >> (32 - bits): ip for ip in reversed(ips)} for ips in own.values()]
        networks = set.intersection(*map(set, inside)) if inside else set()
        if networks:
            return {name: str(ips[min(networks)]) for name, ips in zip(own, inside, strict=True)}
    return {}
