"""hosts.toml -> Inventory."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config import cluster
from orchestrator.config.hosts import place_of, read_entry
from orchestrator.config.job import check_devices, check_secrets, read_data, read_env, read_job
from orchestrator.config.mistakes import DEFAULTS, FILE, JOB, Place, Report, locate
from orchestrator.config.tables import TABLES, belongs, read_table, unknown
from orchestrator.config.values import kind
from orchestrator.errors import UsageError
from orchestrator.model import Inventory
from orchestrator.plainfile import NotOursError, read_plain

_MOST = 1 << 20  # bytes of an inventory
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_KEY = re.compile(r"\s*(\[{1,2}[A-Za-z0-9_. -]+\]{1,2}|[A-Za-z0-9_.-]+(?=\s*=))")


def load(path: str | Path, *, ours: bool = False) -> Inventory:
    """Read an inventory from disk; raise UsageError for whatever is wrong with it.

    `ours`: nobody named the file, so another user must not have been able to write it.
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
    return _anchored(parse(data, str(path)), Path(path).absolute().parent)


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


def parse(text: str | bytes, source: str = "hosts.toml") -> Inventory:
    """Read an inventory from text; raise one UsageError that lists every mistake."""
    report = Report()
    document = _read(text, report)
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
    cluster.check(entries, report)
    job = read_job(job_table, report)
    written = {DEFAULTS: defaults_table, JOB: job_table}
    written |= {place_of(number, table): table for number, table in enumerate(tables, start=1)}
    check_secrets(job.secrets, written, report)
    hosts = tuple(host for entry in entries for host in entry.hosts)
    check_devices(job, hosts, report)
    environment = read_env(_table(document, "env", report), hosts, defaults_table, report)
    data = read_data(_table(document, "data", report), report)
    return Inventory(hosts, job, source, environment, data)


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
