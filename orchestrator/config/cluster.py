"""What must hold between hosts: names, ports, addresses and roles that go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from orchestrator import ranges
from orchestrator.config.hosts import Entry
from orchestrator.config.mistakes import Report
from orchestrator.config.targets import is_loopback
from orchestrator.model import Host, Role


def check(entries: tuple[Entry, ...], report: Report) -> None:
    _check_names(entries, report)
    _check_ports(entries, report)
    _check_loopback(entries, report)
    _check_at_most_one(entries, Role.CHIEF, report)
    _check_at_most_one(entries, Role.EVALUATOR, report)
    # What is missing can be said only once everything that is there could be read.
    if all(entry.complete for entry in entries):
        _check_missing(entries, report)


def _check_names(entries: tuple[Entry, ...], report: Report) -> None:
    first: dict[str, Entry] = {}
    for entry in entries:
        again = [(host.name, first[host.name]) for host in entry.hosts if host.name in first]
        for earlier, found in _by_entry(again):
            key, what = _named_twice(entry, earlier, found)
            report.add(entry.where, key, what)
        names = [host.name for host in entry.hosts]
        if len(set(names)) < len(names):
            twice = ranges.fold(name for name in names if names.count(name) > 1)
            report.add(entry.where, "name", f"{twice} comes twice in its own range")
        for name in names:
            first.setdefault(name, entry)


def _named_twice(entry: Entry, earlier: Entry, found: list[str]) -> tuple[str, str]:
    names = ranges.fold(found)
    if "name" not in entry.given:
        return "name", f"would be {names} as in {earlier.where}; give each host a name of its own"
    if len(entry.hosts) > 1 or len(earlier.hosts) > 1:
        return "name", f"overlaps with {earlier.where}: both name {names}"
    return "name", f"{names} is the name of {earlier.where} too"


def _check_ports(entries: tuple[Entry, ...], report: Report) -> None:
    """TensorFlow binds *:port, so a port can be used once per machine, whatever the address."""
    holders: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        clashes: list[tuple[str, Entry]] = []
        for host in entry.hosts:
            ports = range(host.task_port, host.task_port + host.tasks)
            taken = [
                (port, holders[machine, port])
                for port in ports
                for machine in _machines(host)
                if (machine, port) in holders
            ]
            clashes += [(f"{port}", holder) for port, holder in taken]
            for port in ports:
                for machine in _machines(host):
                    holders.setdefault((machine, port), entry)
        for earlier, found in _by_entry(clashes):
            report.add(entry.where, "task_port", _taken_twice(entry, earlier, found))


def _taken_twice(entry: Entry, earlier: Entry, found: list[str]) -> str:
    ports = ranges.fold(found)
    who = "another host of the same range" if earlier is entry else earlier.where
    return (
        f"{ports} is used by {who} on the same machine;"
        " every task of a machine needs a port of its own (or write one [[host]] with tasks = 2)"
    )


def _machines(host: Host) -> Iterator[str]:
    """Names for the machine a host is; two hosts that share one are one machine."""
    yield "loopback" if is_loopback(host.address) else f"address {host.address.lower()}"
    if not is_loopback(host.address):
        # Behind a forwarded port "localhost" can be any machine; otherwise one target is one machine.
        yield f"ssh {host.ssh} {host.port}"


def _check_loopback(entries: tuple[Entry, ...], report: Report) -> None:
    hosts = [host for entry in entries for host in entry.hosts]
    others = [host for host in hosts if not is_loopback(host.address)]
    if not others:
        return
    for entry in entries:
        inner = next((host for host in entry.hosts if is_loopback(host.address)), None)
        if inner:
            what = f"{inner.address} is each machine's own; {others[0].name} cannot reach it there"
            report.add(entry.where, "address", f"{what}, write the address the others see")


def _check_at_most_one(entries: tuple[Entry, ...], role: Role, report: Report) -> None:
    seen: Entry | None = None
    for entry in entries:
        tasks = sum(host.tasks for host in entry.hosts if host.role is role and not host.spare)
        if tasks > 1:
            report.add(entry.where, "role", f"makes {tasks} tasks the {role.value}; there can be only one")
        elif tasks and seen:
            report.add(entry.where, "role", f"a second {role.value}; {seen.where} has that role")
        if tasks:
            seen = seen or entry


def _check_missing(entries: tuple[Entry, ...], report: Report) -> None:
    """Roles that need another one."""
    holders: dict[Role, str] = {}
    for entry in entries:
        for host in entry.hosts:
            if not host.spare:
                holders.setdefault(host.role, entry.where)
    if not holders:
        report.add("", "", "every host is a spare; at least one must run a task")
    elif holders.keys() == {Role.EVALUATOR}:
        report.add(
            holders[Role.EVALUATOR], "role", "an evaluator alone has nothing to evaluate; add a worker"
        )
    elif Role.PS in holders and Role.CHIEF not in holders:
        what = "there is no chief; ParameterServerStrategy needs one to run the program and drive the workers"
        report.add(holders[Role.PS], "role", f'{what}; give one host role = "chief"')
    elif Role.PS in holders and Role.WORKER not in holders:
        report.add(
            holders[Role.PS], "role", "there is no worker; ParameterServerStrategy computes on workers"
        )


def _by_entry(found: Iterable[tuple[str, Entry]]) -> Iterator[tuple[Entry, list[str]]]:
    """Group (what, entry) by entry, in the order of the file."""
    ordered = sorted(found, key=lambda item: item[1].number)
    for _, group in groupby(ordered, key=lambda item: item[1].number):
        items = list(group)
        yield items[0][1], [what for what, _ in items]
