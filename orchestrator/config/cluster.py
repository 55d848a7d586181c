"""What must hold between hosts: names, ports, addresses and roles that go together."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from orchestrator import ranges
from orchestrator.config.hosts import HostTable
from orchestrator.config.mistakes import Report
from orchestrator.config.targets import is_address, is_loopback
from orchestrator.model import Host, Role


def check(entries: tuple[HostTable, ...], report: Report) -> None:
    _check_twice(entries, report)
    _check_loopback(entries, report)
    _check_at_most_one(entries, Role.CHIEF, report)
    _check_at_most_one(entries, Role.EVALUATOR, report)
    # What is missing can be said only once everything that is there could be read.
    if entries and all(entry.complete for entry in entries):
        _check_missing(entries, report)


class _Twice(Enum):
    """How two hosts collide."""

    HOST = auto()  # in name and ports: the same host, written twice
    NAME = auto()
    PORT = auto()


def _check_twice(entries: tuple[HostTable, ...], report: Report) -> None:
    """Two hosts with one name, or two tasks with one port of one machine.

    TensorFlow binds *:port, so a port can be used once per machine, whatever the address.
    """
    names: dict[str, tuple[HostTable, Host]] = {}
    ports: dict[tuple[str, int], HostTable] = {}
    for entry in entries:
        found: dict[tuple[_Twice, HostTable], dict[str, None]] = {}
        for host in entry.hosts:
            other, namesake = names.setdefault(host.name, (entry, host))
            # A port that could not be read is not a reason to complain about the default one.
            seats = tuple(_seats(host)) if entry.complete else ()
            taken = [(ports[seat], str(seat[1])) for seat in seats if seat in ports]
            if namesake is not host:
                how = _Twice.HOST if taken else _Twice.NAME
                found.setdefault((how, other), {})[host.name] = None
            else:
                for holder, port in taken:
                    found.setdefault((_Twice.PORT, holder), {})[port] = None
            ports |= {seat: entry for seat in seats if seat not in ports}
        for (how, other), what in found.items():
            _add_twice(entry, other, how, ranges.fold(what), report)


def _add_twice(entry: HostTable, other: HostTable, how: _Twice, what: str, report: Report) -> None:
    where = "another host of this range" if other is entry else other.place.title
    match how:
        case _Twice.HOST:
            report.add(entry.place, "", f"{what} is in {where} too, with the same name and port")
        case _Twice.NAME if "name" in entry.given:
            report.add(entry.place, "name", f"{what} is in {where} too; every host needs a name of its own")
        case _Twice.NAME:
            report.add(entry.place, "name", f"would be {what}, as in {where}; give one of them another name")
        case _Twice.PORT:
            ports = f"port {what} is" if what.isdigit() else f"ports {what.strip('[]')} are"
            report.add(
                entry.place,
                "task_port",
                f"{ports} taken on that machine by {where}; give this host another task_port,"
                " or write the machine once with tasks = 2",
            )


def _seats(host: Host) -> Iterator[tuple[str, int]]:
    """(machine, port) of each of its tasks, under every name by which two hosts can be one machine."""
    machines = [f"ssh {host.ssh} {host.port}", f"address {host.address.lower()}"]
    # With one forwarded port per machine, "localhost" can be any of them; as an address it cannot.
    for machine in ["loopback"] if is_loopback(host.address) else machines:
        yield from ((machine, host.task_port + place) for place in range(host.tasks))


def _check_loopback(entries: tuple[HostTable, ...], report: Report) -> None:
    others = [host.name for entry in entries for host in entry.hosts if not is_loopback(host.address)]
    for entry in entries if others else ():
        inner = next((host for host in entry.hosts if is_loopback(host.address)), None)
        if inner is not None:
            what = f"{inner.address} means every machine itself, so {others[0]} cannot reach this host there"
            report.add(entry.place, "address", what, _outer(inner, entry))


def _outer(host: Host, entry: HostTable) -> str:
    """Which `address` to write in place of a loopback one, as far as the file tells."""
    if not is_loopback(host.ssh) and is_address(host.ssh):
        names = ranges.fold(one.ssh for one in entry.hosts)
        return f'write `address = "{names}"`'
    where = "of this machine" if host.is_local else f"of {host.name}"
    return (
        f'write `address = "..."` with the address {where} that the others reach: `hostname -I` there shows'
        " it"
    )


def _check_at_most_one(entries: tuple[HostTable, ...], role: Role, report: Report) -> None:
    seen: HostTable | None = None
    for entry in entries:
        tasks = sum(host.tasks for host in entry.hosts if host.role is role and not host.spare)
        if tasks > 1:
            report.add(entry.place, "role", f"makes {tasks} tasks the {role.value}; there can be only one")
        elif tasks and seen:
            report.add(
                entry.place,
                "role",
                f"is a second {role.value}, beside {seen.place.title}; there can be only one",
            )
        if tasks:
            seen = seen or entry


def _check_missing(entries: tuple[HostTable, ...], report: Report) -> None:
    """Roles that need another one."""
    holders: dict[Role, HostTable] = {}
    for entry in entries:
        for host in entry.hosts:
            if not host.spare:
                holders.setdefault(host.role, entry)
    if not holders:
        report.add_to_file("every host is a spare; at least one must run a task")
    elif holders.keys() == {Role.EVALUATOR}:
        what = "an evaluator alone has nothing to evaluate; add a host that trains"
        report.add(holders[Role.EVALUATOR].place, "role", what)
    elif Role.PS in holders and Role.CHIEF not in holders:
        what = (
            "ps needs a chief: ParameterServerStrategy runs the program there and drives the workers from it"
        )
        report.add(holders[Role.PS].place, "role", f'{what}; give one host role = "chief"')
    elif Role.PS in holders and Role.WORKER not in holders:
        what = "ps needs a worker: with ParameterServerStrategy the workers compute, the chief does not"
        report.add(holders[Role.PS].place, "role", f"{what}; add a host without a role")
