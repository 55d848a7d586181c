"""The [job] table, and what it and the hosts may not both say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.config.mistakes import Report
from orchestrator.config.places import JOB, Place
from orchestrator.config.tables import read_table
from orchestrator.model import Host, Job
from orchestrator.planning.environ import DEVICES


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
