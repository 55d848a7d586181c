"""[[host]] tables -> hosts: ranges expanded, defaults filled in, ssh targets taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator import ranges
from orchestrator.config import targets, values
from orchestrator.config.mistakes import DEFAULTS, Place, Report, Wrong, show
from orchestrator.config.tables import IDENTITY_KEYS, Read, read_table
from orchestrator.model import LOCAL, MAX_PORT, Host, Role
from orchestrator.planning.environ import DEVICES
from orchestrator.text import count

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class HostTable:
    """One [[host]] table: the hosts it stands for, and what was written in it."""

    place: Place
    hosts: tuple[Host, ...]
    given: frozenset[str]
    complete: bool  # nothing in it was wrong


def place_of(number: int, table: Mapping[str, Any]) -> Place:
    """`[[host]] #3 (gpu-03)`, so that one finds the table by eye."""
    for key in IDENTITY_KEYS:
        value = table.get(key)
        if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 40:
            return Place(f"[[host]] #{number} ({value})", "host", number)
    return Place(f"[[host]] #{number}", "host", number)


def read_entry(number: int, table: Mapping[str, Any], defaults: Read, report: Report) -> HostTable:
    """Read one [[host]] table; a host whose name or addresses are wrong is left out of `hosts`."""
    place = place_of(number, table)
    before = len(report)
    read = read_table(table, "host", place, report)
    own = {**defaults.good, **read.good}
    own["env"] = {**defaults.good.get("env", {}), **read.good.get("env", {})}
    if own.get("spare"):
        if "role" in read.good:
            report.add(place, "role", "a spare takes the role of the host it replaces; leave role out")
        own["role"] = Role.WORKER
    _check_tasks(own, place, frozenset(table), report)
    hosts: tuple[Host, ...] = ()
    if not read.wrong & IDENTITY_KEYS.keys():
        hosts = _hosts(own, read.good, place, report)
    complete = len(report) == before and not defaults.wrong
    return HostTable(place, hosts, frozenset(table), complete)


def _check_tasks(own: Mapping[str, Any], place: Place, given: frozenset[str], report: Report) -> None:
    """Return what the tasks of one host share: its devices, a row of ports and its folders."""

    def home(*keys: str) -> Place:
        return place if given & set(keys) else DEFAULTS

    devices, tasks = own.get("devices"), own.get("tasks", 1)
    if devices is not None and len(devices) % tasks:
        share = f"{count(len(devices), 'GPU')} cannot be shared out evenly to {tasks} tasks"
        report.add(home("devices", "tasks"), "devices", share)
    if devices is not None and DEVICES in own["env"]:
        report.add(home("devices", "env"), f"env.{DEVICES}", "is what `devices` sets; keep one of the two")
    last = own.get("task_port", Host.task_port) + tasks - 1
    if last > MAX_PORT:
        what = f"the ports of {tasks} tasks would end at {last}, beyond {MAX_PORT}"
        report.add(home("task_port", "tasks"), "task_port", what)
    workdir, state = own.get("workdir", Host.workdir), own.get("state")
    if state and values.normal(state) == values.normal(workdir):
        what = (
            f'is the workdir too, and logs go before what tasks write; write "{values.normal(state)}/state"'
        )
        report.add(home("state", "workdir"), "state", what)


def _hosts(own: Mapping[str, Any], read: Mapping[str, Any], place: Place, report: Report) -> tuple[Host, ...]:
    columns = _columns(read, place, report)
    if columns is None:
        return ()
    names = _each(columns.get("name"), targets.read_name, place, "name", report)
    addresses = _each(columns.get("address"), targets.read_address, place, "address", report)
    ssh_key = next((key for key in ("ssh", "address", "name") if key in columns), "")
    if ssh_key in {"", "ssh"} or names is None or addresses is None:
        logins = _each(columns.get("ssh"), targets.read_target, place, "ssh", report)
    else:
        logins = tuple(targets.Destination(host) for host in addresses or names)
    if names is None or addresses is None or logins is None:
        return ()
    if not logins:
        report.add(place, "", "has no name, ssh or address; one of them is needed")
        return ()
    addresses = addresses or _addresses(logins, place, report)
    if not addresses:
        return ()
    fields = {key: value for key, value in own.items() if key not in IDENTITY_KEYS}
    rows = zip(names or addresses, logins, addresses, strict=True)
    return tuple(_host(name, login, address, fields) for name, login, address in rows)


def _host(name: str, login: targets.Destination, address: str, fields: Mapping[str, Any]) -> Host:
    from_ssh = {"user": login.user, "port": login.port}
    known = {key: value for key, value in from_ssh.items() if value is not None}
    return Host(name=name, ssh=login.host, address=address, **{**fields, **known})


def _columns(read: Mapping[str, Any], place: Place, report: Report) -> dict[str, tuple[str, ...]] | None:
    """name, ssh and address with their ranges expanded in step; None after a mistake."""
    columns: dict[str, tuple[str, ...]] = {}
    for key in IDENTITY_KEYS:
        if key in read:
            try:
                columns[key] = ranges.expand(read[key])
            except ValueError as error:
                report.add(place, key, str(error))
                return None
    counts = {key: count(len(column), "host") for key, column in columns.items()}
    longest = max(columns, key=lambda key: len(columns[key]), default="")
    for key, given in counts.items():
        if given != counts[longest]:
            what = f"stands for {given}, but {longest} for {counts[longest]}"
            report.add(place, key, f"{what}; give both the same range")
            return None
    return columns


def _each(
    column: tuple[str, ...] | None, read: Callable[[str], _T], place: Place, key: str, report: Report
) -> tuple[_T, ...] | None:
    """Read every value of a column; () when there is none; None after the first mistake."""
    try:
        return tuple(map(read, column or ()))
    except Wrong as wrong:
        report.add(place, key, str(wrong))
        return None


def _addresses(logins: tuple[targets.Destination, ...], place: Place, report: Report) -> tuple[str, ...]:
    """How the other tasks reach a host when only `ssh` says anything about it."""
    for login in logins:
        if login.host == LOCAL:
            what = 'is needed with ssh = "local"; "127.0.0.1" will do when every host is this machine'
        elif not targets.is_address(login.host):
            what = f"is needed, since {show(login.host)} is not a host name other tasks could use"
        else:
            continue
        report.add(place, "address", what)
        return ()
    return tuple(targets.read_address(login.host) for login in logins)
