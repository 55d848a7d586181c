"""The keys of each table with their readers, and how a table is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config import values
from orchestrator.config.mistakes import Report, Wrong, among, nearest
from orchestrator.config.values import Reader, Wrongs

MAX_PORT = 65535
MAX_TASKS = 1024

IDENTITY_KEYS: Mapping[str, Reader] = {"name": values.text, "ssh": values.text, "address": values.text}

DEFAULTS_KEYS: Mapping[str, Reader] = {
    "user": values.user,
    "port": values.whole(1, MAX_PORT),
    "identity": values.identity,
    "ssh_config": values.text,
    "python": values.program,
    "agent_python": values.program,
    "workdir": values.path,
    "state": values.path,
    "task_port": values.whole(1024, MAX_PORT, below="lower ports belong to root"),
    "tasks": values.whole(1, MAX_TASKS, below="to keep a host out of runs, write spare = true"),
    "role": values.role,
    "devices": values.devices,
    "spare": values.boolean,
    "env": values.env,
}

HOST_KEYS: Mapping[str, Reader] = {**IDENTITY_KEYS, **DEFAULTS_KEYS}

JOB_KEYS: Mapping[str, Reader] = {
    "command": values.command,
    "setup": values.shell_text,
    "env": values.env,
    "forward": values.names,
    "secrets": values.names,
    "grace": values.seconds,
    "failure_grace": values.seconds,
    "lifeline": values.seconds,
    "ignore": values.texts,
    "validate": values.command_line,
    "legacy_keras": values.boolean,
}

TABLES: Mapping[str, tuple[str, Mapping[str, Reader]]] = {
    "defaults": ("[defaults]", DEFAULTS_KEYS),
    "host": ("[[host]]", HOST_KEYS),
    "job": ("[job]", JOB_KEYS),
}

# What people write who come from ssh_config, Ansible, Slurm or mpirun.
SYNONYMS: Mapping[str, str] = {
    "args": "command",
    "cmd": "command",
    "cuda_visible_devices": "devices",
    "cwd": "workdir",
    "dir": "workdir",
    "directory": "workdir",
    "environment": "env",
    "exclude": "ignore",
    "gpu": "devices",
    "gpus": "devices",
    "host": "ssh",
    "hostname": "ssh",
    "identity_file": "identity",
    "identityfile": "identity",
    "interpreter": "python",
    "ip": "address",
    "key": "identity",
    "keyfile": "identity",
    "login": "user",
    "private_key": "identity",
    "processes": "tasks",
    "script": "command",
    "slots": "tasks",
    "ssh_port": "port",
    "ssh_key": "identity",
    "ssh_user": "user",
    "tf_port": "task_port",
    "type": "role",
    "username": "user",
}


@dataclass(frozen=True)
class Read:
    """A table's good values, and the keys whose value was wrong."""

    good: Mapping[str, Any]
    wrong: frozenset[str] = frozenset()


def read_table(table: Mapping[str, Any], name: str, where: str, report: Report) -> Read:
    """Read every key of one table of kind `name`; what is wrong goes to the report."""
    readers = TABLES[name][1]
    good: dict[str, Any] = {}
    wrong: set[str] = set()
    for key, value in table.items():
        if key not in readers:
            report.add(where, key, _unknown(key, name))
            continue
        try:
            good[key] = readers[key](value)
        except Wrongs as several:
            wrong.add(key)
            for inner, what in several.found:
                report.add(where, f"{key}.{inner}", what)
        except Wrong as one:
            wrong.add(key)
            report.add(where, key, str(one))
    return Read(good, frozenset(wrong))


def _unknown(key: str, name: str) -> str:
    if name == "defaults" and key in IDENTITY_KEYS:
        return "is different for every host; it belongs under [[host]]"
    for other, (title, readers) in TABLES.items():
        if other != name and key in readers:
            return f"belongs under {title}"
    return unknown(key, TABLES[name][1], "key")


def unknown(key: str, valid: Collection[str], noun: str) -> str:
    """`is not a key; did you mean port?`"""
    meant = SYNONYMS.get(key.lower().replace("-", "_"))
    meant = meant if meant in valid else nearest(key.replace("-", "_"), valid)
    if meant:
        return f"is not a {noun}; did you mean {meant}?"
    return f"is not a {noun}; there is {among(valid).replace(' or ', ' and ')}"
