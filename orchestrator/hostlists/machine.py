"""Entries of hosts.toml made from the facts of machines. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.config.targets import ip_of

_ROOM = 10 << 30  # bytes that code, logs and a few checkpoints should find free


@dataclass(frozen=True)
class TensorFlowPython:
    """An interpreter that has TensorFlow."""

    path: str
    tensorflow: str


@dataclass(frozen=True)
class Room:
    """A folder in which one may write, and what is free there."""

    path: str
    free: int


@dataclass(frozen=True)
class Machine:
    hostname: str  # how it is reached from here: a HostName of ssh_config, or what stands in its place
    place: str  # the same for hosts that are one machine and network
    addresses: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    pythons: tuple[TensorFlowPython, ...] = ()
    rooms: tuple[Room, ...] = ()


def choose_addresses(machines: Mapping[str, Machine]) -> dict[str, str]:
    """How the others reach each host.

    The address that ssh uses, when it is one of the machine's own (behind a forwarded port or NAT it is not);
    else its own address in a network that all of them are in. What neither finds is left out.
    """
    if len({machine.place for machine in machines.values()}) == 1:
        return {name: machine.hostname for name, machine in machines.items() if ip_of(machine.hostname)}
    direct = {name: machine.hostname for name, machine in machines.items() if _has(machine, machine.hostname)}
    if len(direct) == len(machines) == len(set(direct.values())):
        return direct
    shared = _shared(machines)
    return {name: address for name in machines if (address := shared.get(name) or direct.get(name))}


def _has(machine: Machine, address: str) -> bool:
    ip = ip_of(address)
    return ip is not None and not ip.is_loopback and address in machine.addresses


def _shared(machines: Mapping[str, Machine]) -> dict[str, str]:
    """An address of every host, all in the smallest network that has one of each; {} without such."""
    times = Counter(ip for machine in machines.values() for ip in set(machine.addresses))
    # An address that several have, as docker's bridge, leads nowhere.
    own = {
        name: [ip for text in machine.addresses if times[text] == 1 and (ip := _usable(text))]
        for name, machine in machines.items()
    }
    for bits in (24, 20, 16, 8):
        # A dict for each: a machine may say that it has thousands, and everyone's are compared.
        inside = {name: {int(ip) >> (32 - bits): ip for ip in reversed(ips)} for name, ips in own.items()}
        first, *others = inside.values()
        for network in reversed(first):
            if all(network in ips for ips in others):
                return {name: str(ips[network]) for name, ips in inside.items()}
    return {}


def _usable(text: str) -> ipaddress.IPv4Address | None:
    ip = ip_of(text)
    usable = isinstance(ip, ipaddress.IPv4Address) and not (ip.is_loopback or ip.is_link_local)
    return ip if usable and isinstance(ip, ipaddress.IPv4Address) else None


@dataclass(frozen=True)
class Pythons:
    """One for all, or one for each, or neither: then an environment has to be made."""

    common: TensorFlowPython | None = None
    each: Mapping[str, TensorFlowPython] | None = None


def choose_pythons(machines: Iterable[tuple[str, Machine]]) -> Pythons:
    """The first path that has the same TensorFlow on all, if there is one."""
    known = dict(machines)
    if not known or not all(machine.pythons for machine in known.values()):
        return Pythons()
    first, *others = known.values()
    for python in first.pythons:
        if all(python in machine.pythons for machine in others):
            return Pythons(common=python)
    return Pythons(each={name: machine.pythons[0] for name, machine in known.items()})


def choose_workdir(machines: Iterable[Machine]) -> Room | None:
    """Where all have room, when the home of one has too little; None for the default."""
    rooms = [{room.path: room.free for room in machine.rooms} for machine in machines]
    if not rooms or all(one.get("~", _ROOM) >= _ROOM for one in rooms):
        return None
    common = {path: min(one[path] for one in rooms) for path in rooms[0] if all(path in one for one in rooms)}
    best = max(common, key=lambda path: common[path], default="~")
    return Room(best, common[best]) if common.get(best, 0) > common.get("~", 0) else None
