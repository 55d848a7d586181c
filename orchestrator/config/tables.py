"""The keys of each table with their readers, and how a table is read."""

from collections.abc import Mapping
from typing import Any

from orchestrator.config import values
from orchestrator.config.mistakes import Place, Report, Wrong, listed
from orchestrator.config.values import Reader
from orchestrator.model import MAX_PORT, AutoShard, Engine, FrameworkName, OnHang, Revalidate, Role, Via
from orchestrator.nearest import KEYS, REMARKS, nearest
from orchestrator.nearest import TABLES as OTHER_TABLES
from orchestrator.value import Value

MAX_TASKS = 1024
MAX_RESTARTS = 1_000_000

IDENTITY_KEYS: Mapping[str, Reader] = {"name": values.text, "ssh": values.text, "address": values.text}

CONTAINER_KEYS: Mapping[str, Reader] = {
    "container": values.image,
    "container_args": values.texts,
    "container_engine": values.one_of(Engine),
}

DEFAULTS_KEYS: Mapping[str, Reader] = {
    "user": values.user,
    "port": values.whole(1, MAX_PORT),
    "identity": values.text,
    "ssh_config": values.text,
    "via": values.via,
    "python": values.program,
    "agent_python": values.program,
    "workdir": values.workdir,
    "state": values.workdir,
    "task_port": values.whole(1024, MAX_PORT),
    "tasks": values.whole(1, MAX_TASKS),
    "role": values.one_of(Role),
    "devices": values.devices,
    "spare": values.boolean,
    "env": values.env,
    **CONTAINER_KEYS,
}

ROLE_KEYS: Mapping[str, Reader] = {"command": values.command, "args": values.words, **CONTAINER_KEYS}

HOST_KEYS: Mapping[str, Reader] = {**IDENTITY_KEYS, **DEFAULTS_KEYS, **ROLE_KEYS}

JOB_KEYS: Mapping[str, Reader] = {
    "command": values.command,
    "setup": values.shell_text,
    "env": values.env,
    "secrets": values.names,
    "grace": values.seconds,
    "failure_grace": values.seconds,
    "lifeline": values.seconds,
    "evaluator_timeout": values.seconds,
    "code": values.text,
    "ignore": values.texts,
    "validate": values.validate,
    "validation": values.one_of(Revalidate),
    "hang_timeout": values.seconds,
    "on_hang": values.one_of(OnHang),
    "stacks": values.boolean,
    "keep_warm": values.seconds,
    "framework": values.one_of(FrameworkName),
    "legacy_keras": values.boolean,
    "repair_keras": values.boolean,
    "tf_config": values.boolean,
    "auto_shard": values.one_of(AutoShard),
    "max_restarts": values.whole(0, MAX_RESTARTS),
    "min_hosts": values.whole(1, MAX_TASKS),
    "host_timeout": values.seconds,
    "backup": values.folder,
    "notify": values.command,
}

ENV_KEYS: Mapping[str, Reader] = {
    "requirements": values.text,
    "packages": values.texts,
    "extras": values.texts,
    "python": values.interpreter,
    "index": values.url,
    "via": values.one_of(Via),
}

DATA_KEYS: Mapping[str, Reader] = {
    "sets": values.data_sets,
    "paths": values.data_paths,
    "keras": values.data_paths,
    "tfds_dir": values.text,
}

KUBERNETES_KEYS: Mapping[str, Reader] = {
    "image": values.text,
    "namespace": values.text,
    "claim": values.text,
    "cpu": values.matching(r"[0-9]+(\.[0-9]+)?m?", 'text such as "8" or "500m"'),
    "memory": values.matching(r"[0-9]+([kMGTPE]|[KMGTPE]i)?", 'text such as "64Gi"'),
}

TABLES: Mapping[str, tuple[str, Mapping[str, Reader]]] = {
    "defaults": ("[defaults]", DEFAULTS_KEYS),
    "host": ("[[host]]", HOST_KEYS),
    "job": ("[job]", JOB_KEYS),
    "env": ("[env]", ENV_KEYS),
    "data": ("[data]", DATA_KEYS),
    "export.kubernetes": ("[export.kubernetes]", KUBERNETES_KEYS),
    **{f"role.{role}": (f"[role.{role}]", ROLE_KEYS) for role in Role},
}


class Read(Value):
    """A table's valid values, and the keys whose value was wrong."""

    good: Mapping[str, Any]
    wrong: frozenset[str] = frozenset()


def read_table(table: Mapping[str, Any], place: Place, report: Report) -> Read:
    """Read every key of one table; mistakes go to the report."""
    readers = TABLES[place.table][1]
    good: dict[str, Any] = {}
    wrong: set[str] = set()
    for key, value in table.items():
        if key not in readers:
            report.add(place, key, unknown(key, {key: key for key in readers}, "key"))
            continue
        try:
            good[key] = readers[key](value)
        except Wrong as mistake:
            wrong.add(key)
            report.add(place, key, str(mistake))
    return Read(good, frozenset(wrong))


def belongs(key: str) -> str:
    """Return the tables that have this key: `[defaults] or [[host]]`; "" if there is none."""
    titles = [title for title, readers in TABLES.values() if key in readers and "[role." not in title]
    return listed(titles, "or") if titles else ""


def unknown(key: str, valid: Mapping[str, str], noun: str) -> str:
    """Return `is not a key; did you mean port?`; `valid` maps each valid word to its notation."""
    if homes := belongs(key):
        return f"belongs under {homes}"
    word = key.replace("-", "_")
    remark = f" ({note})" if (note := REMARKS.get(word.lower())) else ""
    if meant := nearest(word, valid, KEYS if noun == "key" else OTHER_TABLES):
        return f"is not a {noun}; did you mean {valid[meant]}?{remark}"
    if homes := belongs(KEYS.get(word.lower(), "")):
        return f"is not a {noun}; did you mean {KEYS[word.lower()]}, under {homes}?{remark}"
    return f"is not a {noun}; the {noun}s are {listed(list(valid.values()), 'and')}"
