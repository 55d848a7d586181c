"""The [env] table: the environment that `setup` makes, in place of a `python` of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.mistakes import Report
from orchestrator.config.places import DEFAULTS, ENV
from orchestrator.config.tables import read_table
from orchestrator.model import Environment, Host

# What worker_entry and the tutorials need: tf-keras is what lets `fit` run on several tasks, scikit-learn has
# data sets and splits, and tensorflow-datasets prepares data with importlib_resources without declaring it.
_COMPANIONS = ("tf-keras", "tensorflow-datasets", "importlib_resources", "scikit-learn", "tensorboard")
_CPU = ("tensorflow-cpu; platform_machine == 'x86_64'", "tensorflow; platform_machine != 'x86_64'")
_GPU = ("tensorflow[and-cuda]",)


def read_env(
    document: Mapping[str, Any],
    table: Mapping[str, Any],
    hosts: Sequence[Host],
    defaults: Mapping[str, Any],
    report: Report,
) -> Environment | None:
    """The environment; None where the file has no [env]."""
    if "env" not in document:
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
