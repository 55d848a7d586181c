"""Rules between hosts: names, ports, addresses and roles that go together."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator import ranges
from orchestrator.config.hosts import HostTable
from orchestrator.config.mistakes import Report
from orchestrator.config.targets import is_loopback
from orchestrator.model import Host, Role


def check(entries: tuple[HostTable, ...], report: Report) -> None:
    _check_twice(entries, report)
    _check_loopback(entries, report)
    _check_at_most_one(entries, Role.CHIEF, report)
    _check_at_most_one(entries, Role.EVALUATOR, report)
    # What is missing can be said only once everything that is there could be read.
    if entries and all(entry.complete for entry in entries):
        _check_missing(entries, report)


def _check_twice(entries: tuple[HostTable, ...], report: Report) -> None:
    """Two hosts with one name, or two tasks with one port of one machine.

    TensorFlow binds *:port, so a port can be used once per machine, whatever the address.
    """
    names: dict[str, HostTable] = {}
    ports: dict[tuple[str, int], HostTable] = {}
    for entry in entries:
        twice: dict[tuple[str, HostTable], dict[str, None]] = {}
        for host in entry.hosts:
            # A port that could not be read is not a reason to complain about the default one.
            seats = tuple(_seats(host)) if entry.complete else ()
            if host.name in names:
                twice.setdefault(("name", names[host.name]), {})[host.name] = None
            else:
                for seat in seats:
                    if seat in ports:
                        twice.setdefault(("task_port", ports[seat]), {})[str(seat[1])] = None
            names.setdefault(host.name, entry)
            ports = dict.fromkeys(seats, entry) | ports
        for (key, other), values in twice.items():
            where = "another host of this range" if other is entry else other.place.title
            what = f"{ranges.fold(values)} is in {where} too; every host needs a name of its own"
            if key == "task_port":
                what = (
                    f"{ranges.fold(values)} is taken on that machine by {where}; give this host another"
                    " task_port, or write the machine once with tasks = 2"
                )
            report.add(entry.place, key, what)


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
            report.add(entry.place, "address", f"{what}; write the one that `hostname -I` shows on it")


def _check_at_most_one(entries: tuple[HostTable, ...], role: Role, report: Report) -> None:
    first: HostTable | None = None
    for entry in entries:
        tasks = sum(host.tasks for host in entry.hosts if host.role is role and not host.spare)
        if tasks > 1:
            report.add(entry.place, "role", f"makes {tasks} tasks the {role.value}; there can be only one")
        elif tasks and first:
            report.add(
                entry.place,
                "role",
                f"is a second {role.value}, beside {first.place.title}; there can be only one",
            )
        if tasks:
            first = first or entry


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
