"""hosts.toml -> Inventory: its tables, and the rules between hosts."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import ranges
from orchestrator.config.hosts import HostTable, place_of, read_entry
from orchestrator.config.mistakes import DATA, DEFAULTS, ENV, FILE, JOB, KUBERNETES, Place, Report, locate
from orchestrator.config.tables import DATA_KEYS, TABLES, belongs, read_table, unknown
from orchestrator.config.targets import is_loopback
from orchestrator.config.values import kind
from orchestrator.errors import UsageError
from orchestrator.model import Data, Environment, Host, Inventory, Job, Kubernetes, Role
from orchestrator.plainfile import NotOursError, read_plain
from orchestrator.planning.environ import DEVICES

_MOST = 1 << 20  # bytes of an inventory
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_KEY = re.compile(r"\s*(\[{1,2}[A-Za-z0-9_. -]+\]{1,2}|[A-Za-z0-9_.-]+(?=\s*=))")


def load(path: str | Path, *, ours: bool = False, hosts: str = "") -> Inventory:
    """Read an inventory from disk; raise UsageError for whatever is wrong with it.

    `ours`: nobody named the file, so another user must not have been able to write it. `hosts` are
    [[host]] tables in place of its own.
    """
    if Path(path).is_dir():
        inside = Path(path) / "hosts.toml"
        hint = f"`--hosts {shlex.quote(str(inside))}`" if inside.is_file() else "name a file with --hosts"
        raise UsageError(f"{path} is a folder", hint=hint)
    try:
        data = read_plain(Path(path), _MOST, follow=True, ours=ours)
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}",
            hint=f'write two lines, [[host]] and ssh = "gpu-[01-04]", into {path}'
            " (`orchestrate init --example` shows every key), or name a file with --hosts",
        ) from None
    except NotOursError as error:
        name = shlex.quote(str(path))
        raise UsageError(
            f"{path} is not used",
            why=str(error.strerror),
            hint=f"`chmod go-w {name}` if it is yours; or `--hosts {name}`, if you trust it",
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name holds a NUL character"
        raise UsageError(f"cannot read {path}", why=why) from error
    return _anchored(parse(data, str(path), hosts), Path(path).absolute().parent)


def _anchored(inventory: Inventory, folder: Path) -> Inventory:
    """Anchor paths of this machine, relative to the file that names them: a later `tail` starts elsewhere."""

    def anchor(given: str | None) -> str | None:
        return given if given is None or given.startswith("~") else str(folder / given)

    hosts = (
        replace(host, identity=anchor(host.identity), ssh_config=anchor(host.ssh_config))
        for host in inventory.hosts
    )
    environment = inventory.environment
    if environment is not None:
        environment = replace(environment, requirements=anchor(environment.requirements))
    data = inventory.data
    if data is not None:
        data = replace(
            data,
            paths=tuple(str(anchor(one)) for one in data.paths),
            keras=tuple(str(anchor(one)) for one in data.keras),
            mnist=anchor(data.mnist),
            fashion_mnist=anchor(data.fashion_mnist),
            tfds_dir=anchor(data.tfds_dir),
        )
    return replace(inventory, hosts=tuple(hosts), environment=environment, data=data)


def parse(text: str | bytes, source: str = "hosts.toml", hosts: str = "") -> Inventory:
    """Read an inventory from text; raise one UsageError that lists every mistake."""
    report = Report()
    document = _read(text, report)
    if document is not None and hosts:
        document |= tomllib.loads(hosts)
    inventory = None if document is None else _inventory(document, source, report)
    if report or inventory is None:
        raise report.error(source)
    return inventory


def _read(text: str | bytes, report: Report) -> dict[str, Any] | None:
    """Parse; None after a mistake. A byte order mark and any line ends are welcome."""
    try:
        decoded = (text if isinstance(text, str) else text.decode()).removeprefix("\ufeff")
        document = tomllib.loads(decoded)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        report.add(Place(f"line {line}"), "", "is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        _add_syntax(str(error), decoded, report)
    except (ValueError, RecursionError) as error:  # Python's own limits: digits of a number, depth of lists
        report.add_to_file(str(error))
    else:
        report.lines = locate(decoded)
        return document
    return None


def _add_syntax(message: str, text: str, report: Report) -> None:
    """Add line, column and key, but not the rest of the line: it may hold a secret."""
    match = _AT.fullmatch(message)
    if match is None or match[2] is None:
        report.add_to_file(message)
        return
    line, column = int(match[2]), int(match[3])
    key = _KEY.match(text.replace("\r\n", "\n").split("\n")[line - 1])
    what = match[1] + (
        "; a text needs quotes, true and false need none" if match[1] == "Invalid value" else ""
    )
    report.add(Place(f"line {line}, column {column}"), key[1] if key else "", what)


def _inventory(document: Mapping[str, Any], source: str, report: Report) -> Inventory:
    if isinstance(document.get("export"), dict):
        exports = {f"export.{name}": table for name, table in document["export"].items()}
        document = {name: table for name, table in document.items() if name != "export"} | exports
    misplaced = [name for name in document if name not in TABLES]
    for name in misplaced:
        report.add(FILE, name, _misplaced(name, document[name]))
    defaults_table = _table(document, "defaults", report) or {}
    job_table = _table(document, "job", report) or {}
    tables = _host_tables(document, report)
    if not tables and not report:
        report.add_to_file('there is no [[host]]; write one for every machine, and in it ssh = "gpu-01"')
    defaults = read_table(defaults_table, "defaults", DEFAULTS, report)
    entries = tuple(
        read_entry(number, table, defaults, report) for number, table in enumerate(tables, start=1)
    )
    check_cluster(entries, report)
    job = read_job(job_table, report)
    written = {DEFAULTS: defaults_table, JOB: job_table}
    written |= {place_of(number, table): table for number, table in enumerate(tables, start=1)}
    check_secrets(job.secrets, written, report)
    hosts = tuple(host for entry in entries for host in entry.hosts)
    check_devices(job, hosts, report)
    environment = read_env(_table(document, "env", report), hosts, defaults_table, report)
    data = read_data(_table(document, "data", report), report)
    kubernetes = _table(document, "export.kubernetes", report) or {}
    export = Kubernetes(**read_table(kubernetes, "export.kubernetes", KUBERNETES, report).good)
    return Inventory(hosts, job, source, environment, data, export)


def _misplaced(name: str, value: object) -> str:
    homes = belongs(name)
    if homes and not isinstance(value, dict | list):
        return f"stands before any table; it belongs under {homes}"
    return unknown(name, {name: title for name, (title, _) in TABLES.items()}, "table")


def _table(document: Mapping[str, Any], name: str, report: Report) -> Mapping[str, Any] | None:
    """The table of that name; None where the file has none, and no keys where it is something else."""
    value = document.get(name)
    if value is None or isinstance(value, dict):
        return value
    title = TABLES[name][0]
    what = f"can come only once; write {title}" if isinstance(value, list) else f"must be a table, {title}"
    report.add(FILE, name, what)
    return {}


def _host_tables(document: Mapping[str, Any], report: Report) -> list[Mapping[str, Any]]:
    value = document.get("host", [])
    if isinstance(value, dict):
        report.add(FILE, "host", "must be written with double brackets: [[host]]")
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        report.add(FILE, "host", f"must be tables, [[host]], not {kind(value)}")
        return []
    return value


def check_cluster(entries: tuple[HostTable, ...], report: Report) -> None:
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


# What worker_entry and the tutorials need: tf-keras is what lets `fit` run on several tasks, scikit-learn has
# data sets and splits, and tensorflow-datasets prepares data with importlib_resources without declaring it.
_COMPANIONS = ("tf-keras", "tensorflow-datasets", "importlib_resources", "scikit-learn", "tensorboard")
_CPU = ("tensorflow-cpu; platform_machine == 'x86_64'", "tensorflow; platform_machine != 'x86_64'")
_GPU = ("tensorflow[and-cuda]",)

_ORIGINALS = ("mnist", "fashion_mnist")  # the sets that are made from their original idx files


def read_job(table: Mapping[str, Any], report: Report) -> Job:
    good = read_table(table, "job", JOB, report).good
    forward, secrets = good.get("forward", ()), good.get("secrets", ())
    for name in forward:
        if name in secrets:
            report.add(JOB, "forward", f"{name} is listed in `secrets` too; keep it there only")
        if name in good.get("env", {}):
            report.add(JOB, f"env.{name}", "is listed in `forward` too; keep one of the two")
    return Job(**good)


def check_devices(job: Job, hosts: Iterable[Host], report: Report) -> None:
    if DEVICES in job.env and any(host.devices is not None for host in hosts):
        report.add(JOB, f"env.{DEVICES}", "is what `devices` of a host sets; keep one of the two")


def check_secrets(secrets: Iterable[str], tables: Mapping[Place, Mapping[str, Any]], report: Report) -> None:
    """A secret's value has no place in the file."""
    for place, table in tables.items():
        env = table.get("env")
        for name in secrets:
            if isinstance(env, dict) and name in env:
                what = "is listed in `secrets`; remove the value here, it is read from your environment"
                report.add(place, f"env.{name}", what)


def read_env(
    table: Mapping[str, Any] | None, hosts: Sequence[Host], defaults: Mapping[str, Any], report: Report
) -> Environment | None:
    """The environment that `setup` makes, in place of a `python` of your own; None without [env]."""
    if table is None:
        return None
    good = read_table(table, "env", ENV, report).good
    if "python" in defaults:
        report.add(DEFAULTS, "python", "is what [env] makes; remove it here, or remove [env]")
    named = good.get("requirements", "")
    if good.get("extras") and (named == "" or named.endswith(".txt")):
        report.add(ENV, "extras", 'belong to a pyproject.toml; name it: requirements = "pyproject.toml"')
    if "requirements" not in good and not good.get("packages"):
        gpus = any(host.devices for host in hosts)
        good = {**good, "packages": (*(_GPU if gpus else _CPU), *_COMPANIONS)}
    return Environment(**good)


def read_data(table: Mapping[str, Any] | None, report: Report) -> Data | None:
    """Read [data], which is brought to every host before tasks start; None without such a table."""
    if table is None:
        return None
    read = read_table(table, "data", DATA, report)
    good = dict(read.good)
    named = good.get("sets", ())
    # A set whose original files are named is wanted, and need not be listed a second time.
    also = tuple(name for name in _ORIGINALS if name in good and not any(_is(name, one) for one in named))
    good["sets"] = (*named, *also)
    named_well = set(table) <= set(DATA_KEYS) and not read.wrong
    if named_well and not (good["sets"] or good.get("paths") or good.get("keras")):
        report.add(DATA, "", 'names nothing; write sets = ["mnist"] or paths = ["data"]')
    return Data(**good)


def _is(name: str, given: str) -> bool:
    return given.partition(":")[0] == name
