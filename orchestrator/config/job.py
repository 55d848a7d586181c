"""The tables beside the hosts: [job], and the [env] and [data] that its tasks are supplied with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.config.mistakes import DATA, DEFAULTS, ENV, JOB, Place, Report
from orchestrator.config.tables import DATA_KEYS, read_table
from orchestrator.model import Data, Environment, Host, Job
from orchestrator.planning.environ import DEVICES

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
