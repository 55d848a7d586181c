"""hosts.toml -> Inventory: its tables, [[host]] tables as hosts, and the rules between these."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.config import targets, values
from orchestrator.config.mistakes import FILE, Place, Report, Wrong, at, locate, remark
from orchestrator.config.tables import IDENTITY_KEYS, TABLES, Read, read_table, unknown
from orchestrator.errors import UsageError
from orchestrator.model import (
    DEFAULT_PORT,
    DEFAULT_WORKDIR,
    LOCAL,
    MAX_PORT,
    OUTSIDE,
    Data,
    Environment,
    Host,
    Inventory,
    Job,
    Kubernetes,
    Role,
)
from orchestrator.plainfile import NotOursError, at_home, read_plain
from orchestrator.planning.environ import DEVICES
from orchestrator.text import count
from orchestrator.value import Value

_MOST = 1 << 20  # bytes of an inventory


def load(path: str | Path, *, ours: bool = False, hosts: str = "") -> Inventory:
    """Read an inventory from disk; raise UsageError for any mistake in it.

    `ours`: the user did not name the file, so another user must not have been able to write it. `hosts` are
    [[host]] tables that replace its own.
    """
    data = _read_file(path, ours=ours, otherwise="`--hosts {name}`, if you trust it")
    inventory = _anchored(parse(data, str(path), hosts), Path(path).absolute().parent)
    for file in filter(None, dict.fromkeys(host.ssh_config for host in inventory.hosts)):
        if (config := at_home(file)).is_file():  # OpenSSH checks its Includes
            check_ssh_config(config)
    return inventory


def check_ssh_config(file: Path) -> None:
    """Raise UsageError for a file that cannot be read, or that others may write."""
    _read_file(file, ours=True, otherwise="name a copy of your own as `ssh_config` in hosts.toml")


def _read_file(path: str | Path, *, ours: bool, otherwise: str) -> bytes:
    try:
        return read_plain(Path(path), _MOST, follow=True, ours=ours)
    except NotOursError as error:
        name = shlex.quote(str(path))
        hint = f"`chmod go-w {name}` if it is yours; or {otherwise.format(name=name)}"
        raise UsageError(f"{path} is not used", why=str(error.strerror), hint=hint) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name holds a NUL character"
        raise UsageError(f"cannot read {path}", why=why, hint="check the path and its permissions") from error


def _anchored(inventory: Inventory, folder: Path) -> Inventory:
    """Make local paths relative to the file that names them absolute: a later `tail` starts elsewhere."""

    def full(given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(map(full, given))
        return given if given is None or given.startswith("~") else str(folder / given)

    def anchor(noun: Any, *keys: str) -> Any:
        return noun and replace(noun, **{key: full(getattr(noun, key)) for key in keys})

    return replace(
        inventory,
        hosts=tuple(anchor(host, "identity", "ssh_config") for host in inventory.hosts),
        environment=anchor(inventory.environment, "requirements"),
        data=anchor(inventory.data, "paths", "keras", "tfds_dir"),
    )


def parse(text: str | bytes, source: str = "hosts.toml", hosts: str = "") -> Inventory:
    """Read an inventory from text; raise one UsageError that lists every mistake."""
    report = Report()
    document = _read(text, report)
    if document is not None and hosts:
        document |= tomllib.loads(hosts)
    inventory = None if document is None else _inventory(document, source, report, own=not hosts)
    if report or inventory is None:
        raise report.error(source)
    return inventory


def _read(text: str | bytes, report: Report) -> dict[str, Any] | None:
    """Parse; return None after a mistake. A byte order mark and any line ends are accepted."""
    try:
        decoded = (text if isinstance(text, str) else text.decode()).removeprefix("\ufeff")
        document = tomllib.loads(decoded)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        report.add(Place(f"line {line}"), "", "is not UTF-8; save it as UTF-8 in your editor")
    except (ValueError, RecursionError) as error:  # Python's own limits on digits of a number and on depth
        report.add(FILE, "", f"{error}{remark(decoded, str(error))}")
    else:
        report.lines = locate(decoded)
        return document
    return None


def _inventory(document: Mapping[str, Any], source: str, report: Report, *, own: bool) -> Inventory:
    for outer in ("export", "role"):  # hold nothing but tables
        if isinstance(document.get(outer), dict):
            inner = {f"{outer}.{name}": table for name, table in document[outer].items()}
            document = {name: table for name, table in document.items() if name != outer} | inner
    for name in (name for name in document if name not in TABLES):
        of_role = name.startswith("role.")
        titles = {name: title for name, (title, _) in TABLES.items() if name.startswith("role.") == of_role}
        report.add(
            FILE, name, unknown(name, titles if of_role else {**titles, "role": "[role.NAME]"}, "table")
        )

    def read(name: str) -> Read:
        """Read a table that comes once; without it there are no keys."""
        table = document.get(name, {})
        if not isinstance(table, dict):
            report.add(FILE, name, f"must be one table, {TABLES[name][0]}")
            table = {}
        return read_table(table, at(name), report)

    tables = document.get("host", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        report.add(FILE, "host", f"must be tables in double brackets, [[host]], not {values.kind(tables)}")
        tables = []
    if not tables and not report:
        what = 'has no [[host]]; write one for each machine, with ssh = "gpu-01" in it'
        report.add(FILE, "", what)
    defaults = read("defaults")
    entries = tuple(
        read_entry(number, table, defaults, report) for number, table in enumerate(tables, start=1)
    )
    _check_names(entries, report)
    _check_roles(entries, report)
    of_job = read("job").good
    job = Job(**of_job)
    least, trainers = job.min_hosts or 0, sum(not host.spare for entry in entries for host in entry.hosts)
    if least > trainers and all(entry.complete for entry in entries):
        what = f"is {least}, but without spares the run has {count(trainers, 'host')}"
        report.add(at("job"), "min_hosts", what)
    written = {at("defaults"): defaults.good, at("job"): of_job}
    written |= {place_of(number, table): table for number, table in enumerate(tables, start=1)}
    roles = {role: read(f"role.{role}").good for role in Role if f"role.{role}" in document}
    hosts = _of_roles(roles, entries, report, own=own)
    elsewhere = dict.fromkeys(
        job.secrets, "is listed in `secrets`; remove the value here, it is read from your environment"
    )
    if any(host.devices is not None for host in hosts):
        elsewhere[DEVICES] = "is also set by `devices` of a host; remove one of the two"
    for place, table in written.items():
        env = table.get("env")
        for name in (name for name in elsewhere if isinstance(env, dict) and name in env):
            report.add(place, f"env.{name}", elsewhere[name])
    environment = read_env(read("env").good, hosts, defaults.good, report) if "env" in document else None
    data, export = read("data").good, Kubernetes(**read("export.kubernetes").good)
    return Inventory(hosts, job, source, environment, Data(**data) if data else None, export)


def _of_roles(
    roles: Mapping[Role, Mapping[str, Any]], entries: Sequence[HostTable], report: Report, *, own: bool
) -> tuple[Host, ...]:
    """Return all hosts, with the keys of their `roles` where their own tables do not have them.

    `own`: the hosts are those of the file, so that a role that none of them has is a mistake.
    """
    given = {host.name: entry.given for entry in entries for host in entry.hosts}
    hosts = tuple(host for entry in entries for host in entry.hosts)
    for role, keys in roles.items():
        those = {host.name for host in hosts if host.role is role and not host.spare}
        if own and not those and all(entry.complete for entry in entries):
            report.add(at(f"role.{role}"), "", f'applies to no host; write role = "{role}" under a [[host]]')
        hosts = tuple(
            replace(host, **{key: value for key, value in keys.items() if key not in given[host.name]})
            if host.name in those
            else host
            for host in hosts
        )
    for entry in entries:
        names = {host.name for host in entry.hosts if host.role is Role.SERVICE and not host.spare}
        if bare := next((host for host in hosts if host.name in names and not host.command), None):
            what = f"{bare.name} is a service and needs a program of its own; "
            report.add(entry.place, "command", what + 'write command = "dispatcher.py"')
    return hosts


# --- [[host]] tables ---


class HostTable(Value, eq=False):
    """One [[host]] table, and the hosts it stands for."""

    place: Place
    hosts: tuple[Host, ...]
    given: frozenset[str]  # its keys
    complete: bool  # nothing in it was wrong


def place_of(number: int, table: Mapping[str, Any]) -> Place:
    """Return `[[host]] #3 (gpu-03)`, which helps users find the table."""
    for key in IDENTITY_KEYS:
        value = table.get(key)
        if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 40:
            return Place(f"[[host]] #{number} ({value})", "host", number)
    return Place(f"[[host]] #{number}", "host", number)


def read_entry(number: int, table: Mapping[str, Any], defaults: Read, report: Report) -> HostTable:
    """Read one [[host]] table; `hosts` lacks those with a wrong name or address."""
    place = place_of(number, table)
    before = len(report)
    read = read_table(table, place, report)
    own = {**defaults.good, **read.good}
    own["env"] = {**defaults.good.get("env", {}), **read.good.get("env", {})}
    if own.get("spare"):  # it takes the role of the host it replaces
        own["role"] = Role.WORKER
    given = frozenset(table)
    _check_tasks(own, place, given, report)
    hosts: tuple[Host, ...] = ()
    if not read.wrong & IDENTITY_KEYS.keys():
        hosts = _hosts(own, read.good, place, report)
    complete = len(report) == before and not defaults.wrong
    return HostTable(place, hosts, given, complete)


def _check_tasks(own: Mapping[str, Any], place: Place, given: frozenset[str], report: Report) -> None:
    """Report mistakes in what the tasks of one host share: its devices, a row of ports and its folders."""

    def home(*keys: str) -> Place:
        return place if given & set(keys) else at("defaults")

    devices, tasks = own.get("devices"), own.get("tasks", 1)
    if devices is not None and len(devices) % tasks:
        share = f"{count(len(devices), 'GPU')} cannot be divided evenly among {tasks} tasks"
        report.add(home("devices", "tasks"), "devices", share)
    last = own.get("task_port", DEFAULT_PORT) + tasks - 1
    if last > MAX_PORT:
        what = f"the ports of {tasks} tasks would end at {last}, beyond {MAX_PORT}"
        report.add(home("task_port", "tasks"), "task_port", what)
    workdir, state = own.get("workdir", DEFAULT_WORKDIR), own.get("state")
    if state and values.normal(state) == values.normal(workdir):
        what = f'is the same as workdir, but must be a separate folder; write "{values.normal(state)}/state"'
        report.add(home("state", "workdir"), "state", what)


def _hosts(own: Mapping[str, Any], read: Mapping[str, Any], place: Place, report: Report) -> tuple[Host, ...]:
    """Return a table's hosts, whose ranges advance together; none after a mistake in name or address."""
    columns: dict[str, tuple[Any, ...]] = {}
    for key, reader in _IDENTITY.items():
        try:
            columns |= {key: tuple(map(reader, ranges.expand(read[key])))} if key in read else {}
        except (ValueError, Wrong) as mistake:
            report.add(place, key, str(mistake))
            return ()
    counts = {key: count(len(column), "host") for key, column in columns.items()}
    if len({*counts.values()}) > 1:
        each = ", ".join(f"{key} has {hosts}" for key, hosts in counts.items())
        report.add(place, "", f"has ranges of different lengths: {each}; list the same number in each")
        return ()
    names, addresses, logins = (columns.get(key, ()) for key in _IDENTITY)
    logins = logins or tuple(map(targets.Destination, addresses or names))
    if not logins:
        report.add(place, "", "has no name, ssh or address; one of them is needed")
    addresses = addresses or _addresses(logins, place, report)
    fields = {key: value for key, value in own.items() if key not in IDENTITY_KEYS}
    hosts = []
    # Without an address, which is a mistake, there is no host.
    for name, login, address in zip(names or addresses, logins, addresses, strict=False):
        from_ssh = {"user": login.user, "port": login.port}
        known_values = {key: value for key, value in from_ssh.items() if value is not None}
        hosts.append(Host(name=name, ssh=login.host, address=address, **(fields | known_values)))
    return tuple(hosts)


_IDENTITY: Mapping[str, Callable[[str], Any]] = {
    "name": targets.read_name,
    "address": targets.read_address,
    "ssh": targets.read_target,
}


def _addresses(logins: tuple[targets.Destination, ...], place: Place, report: Report) -> tuple[str, ...]:
    """Return how the other tasks reach hosts for which only `ssh` is given."""
    if any(login.host == LOCAL for login in logins):
        what = 'is needed with ssh = "local"; write "127.0.0.1" if every host is this machine'
        report.add(place, "address", what)
        return ()
    try:
        return tuple(targets.read_address(login.host) for login in logins)
    except Wrong as wrong:
        report.add(place, "address", f"is needed, because that of `ssh` {wrong}")
        return ()


# --- the rules between hosts ---


def _check_names(entries: tuple[HostTable, ...], report: Report) -> None:
    """Check that each host has its own name; preflight, which examines the machines, compares ports."""
    taken: dict[str, str] = {}
    for entry in entries:
        names = [host.name for host in entry.hosts]
        if twice := next((name for name in names if name in taken), None):
            what = f"{twice} is also in {taken[twice]}; every host needs its own name"
            report.add(entry.place, "name", what)
        taken |= dict.fromkeys(names, entry.place.title)


def _check_roles(entries: tuple[HostTable, ...], report: Report) -> None:
    """Check for at most one chief and one evaluator, and for roles that require another one."""
    holders: dict[Role, list[Place]] = {}
    for entry in entries:
        for host in entry.hosts:
            if not host.spare:
                holders.setdefault(host.role, []).extend([entry.place] * min(host.tasks, 2))
    for role in (Role.CHIEF, Role.EVALUATOR):
        for place in holders.get(role, [])[1:]:
            report.add(place, "role", f"is a second {role.value}; only one is allowed")
    # A missing role can be reported only if everything else could be read.
    if not entries or not all(entry.complete for entry in entries):
        return
    if not holders:
        report.add(FILE, "", "every host is a spare; at least one must run a task")
    elif holders.keys() <= {*OUTSIDE}:
        role = next(iter(holders))
        what = f"{'an' if role is Role.EVALUATOR else 'a'} {role} alone has nothing to "
        what += f"{'evaluate' if role is Role.EVALUATOR else 'serve'}; add a host that trains"
        report.add(holders[role][0], "role", what)
    elif Role.PS in holders:
        for role, why in _BESIDE_PS.items():
            if role not in holders:
                what = f'ps needs a {role.value}: {why}; give one host role = "{role.value}"'
                report.add(holders[Role.PS][0], "role", what)


_BESIDE_PS = {
    Role.CHIEF: "ParameterServerStrategy runs the program there and drives the workers from it",
    Role.WORKER: "with ParameterServerStrategy the workers compute, the chief does not",
}
# What worker_entry and the tutorials need: with tf-keras `fit` runs on several tasks, scikit-learn has
# data sets and splits, and tensorflow-datasets uses importlib_resources without declaring it.
_COMPANIONS = ("tf-keras", "tensorflow-datasets", "importlib_resources", "scikit-learn", "tensorboard")
_CPU = ("tensorflow-cpu; platform_machine == 'x86_64'", "tensorflow; platform_machine != 'x86_64'")
_GPU = ("tensorflow[and-cuda]",)


def read_env(
    good: Mapping[str, Any], hosts: Sequence[Host], defaults: Mapping[str, Any], report: Report
) -> Environment:
    """Return the environment for `setup` to create, from the keys of [env]."""
    if "python" in defaults:
        report.add(
            at("defaults"), "python", "contradicts [env], which creates the Python; remove one of the two"
        )
    if "requirements" not in good and not good.get("packages"):
        gpus = any(host.devices for host in hosts)
        good = {**good, "packages": (*(_GPU if gpus else _CPU), *_COMPANIONS)}
    return Environment(**good)
