"""From the bytes of hosts.toml to an Inventory."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config import cluster
from orchestrator.config.hosts import label, read_entry
from orchestrator.config.job import check_secrets, read_job
from orchestrator.config.mistakes import Report, Wrong, show
from orchestrator.config.tables import TABLES, read_table, unknown
from orchestrator.config.values import kind
from orchestrator.errors import UsageError
from orchestrator.model import Inventory

_PLACE = re.compile(r"(?s)(.*) \(at (?:line (\d+), column (\d+)|end of document)\)")
_NO_HOST = 'has no [[host]]; write one for every machine, such as: [[host]] ssh = "gpu-01"'


def load(path: str | Path) -> Inventory:
    """Read an inventory from disk; raise UsageError for whatever is wrong with it."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}",
            hint=f"copy hosts.example.toml to {path} and put your machines in, or name a file with --hosts",
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", hint=f"--hosts {Path(path) / 'hosts.toml'}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}", why=getattr(error, "strerror", None) or str(error)) from error
    return _anchored(parse(data, str(path)), Path(path).absolute().parent)


def _anchored(inventory: Inventory, folder: Path) -> Inventory:
    """Paths of this machine, relative to the file that names them: a later `tail` starts elsewhere."""

    def anchor(given: str | None) -> str | None:
        return given if given is None or given.startswith("~") else str(folder / given)

    hosts = (
        replace(host, identity=anchor(host.identity), ssh_config=anchor(host.ssh_config))
        for host in inventory.hosts
    )
    return replace(inventory, hosts=tuple(hosts))


def parse(text: str | bytes, source: str = "hosts.toml") -> Inventory:
    """Read an inventory from text; raise one UsageError that lists every mistake."""
    report = Report()
    document = _document(text, report)
    inventory = None if document is None else _inventory(document, source, report)
    if report or inventory is None:
        raise report.error(source)
    return inventory


def _document(text: str | bytes, report: Report) -> dict[str, Any] | None:
    try:
        decoded = text if isinstance(text, str) else _decode(text)
        return tomllib.loads(decoded.removeprefix("\ufeff"))
    except Wrong as wrong:
        report.add("", "", str(wrong))
    except tomllib.TOMLDecodeError as error:
        report.add(*_syntax(str(error), decoded))
    except (RecursionError, ValueError) as error:
        report.add("", "", f"is not TOML: {error}")
    return None


def _decode(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Wrong("is UTF-16; save it as UTF-8")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Wrong(
            f"line {line} is not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from error


def _syntax(message: str, text: str) -> tuple[str, str, str]:
    """The parser's message with its place first, and the line it is about."""
    match = _PLACE.fullmatch(message)
    if match is None:
        return "", "", f"is not TOML: {message}"
    if match[2] is None:
        return "end of file", "", match[1]
    line = text.split("\n")[int(match[2]) - 1].strip()
    return f"line {match[2]}, column {match[3]}", "", f"{match[1]}: {show(line)}"


def _inventory(document: Mapping[str, Any], source: str, report: Report) -> Inventory | None:
    for name in [name for name in document if name not in TABLES]:
        report.add("", name, _unknown_table(name, document[name]))
    defaults = read_table(_table(document, "defaults", report), "defaults", "[defaults]", report)
    tables = _host_tables(document, report)
    entries = tuple(
        read_entry(number, table, defaults, report) for number, table in enumerate(tables, start=1)
    )
    cluster.check(entries, report)
    job_table = _table(document, "job", report)
    job = read_job(job_table, report)
    envs = {label(number, table): table.get("env") for number, table in enumerate(tables, start=1)}
    envs |= {"[defaults]": _table(document, "defaults").get("env"), "[job]": job_table.get("env")}
    check_secrets(job.secrets, {where: env for where, env in envs.items() if isinstance(env, dict)}, report)
    return Inventory(tuple(host for entry in entries for host in entry.hosts), job, source)


def _unknown_table(name: str, value: object) -> str:
    titles = {name: title for name, (title, _) in TABLES.items()}
    if isinstance(value, dict | list):
        meant = unknown(name, titles, "table")
        for valid, title in titles.items():
            meant = meant.replace(valid, title) if meant.endswith(f"{valid}?") else meant
        return meant
    homes = [title for title, keys in TABLES.values() if name in keys]
    if homes:
        return f"stands before any table; it belongs under {' or '.join(homes)}"
    return unknown(name, titles, "table")


def _table(document: Mapping[str, Any], name: str, report: Report | None = None) -> Mapping[str, Any]:
    value = document.get(name, {})
    if isinstance(value, dict):
        return value
    if report is not None:
        title = TABLES[name][0]
        what = f"may come only once; write {title}" if isinstance(value, list) else f"must be a table {title}"
        report.add("", name, what)
    return {}


def _host_tables(document: Mapping[str, Any], report: Report) -> list[Mapping[str, Any]]:
    value = document.get("host", [])
    if isinstance(value, dict):
        report.add("", "host", "must be written with double brackets: [[host]]")
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        report.add("", "host", f"must be tables [[host]], not {kind(value)}")
        return []
    if not value:
        report.add("", "", _NO_HOST)
    return value
