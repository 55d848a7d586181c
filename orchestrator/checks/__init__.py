"""Checks of preflight: facts in, `CheckReported` out. Pure.

A check is a row of the table: its name, a program that every host runs for it, the judgment, and a fix.
`host.py` has those of one machine, `cluster.py` those of all machines and their pairs.
"""

from __future__ import annotations

from orchestrator.checks import cluster, host
from orchestrator.checks.host import MACHINE, described
from orchestrator.checks.report import MODULES, PACKAGES, Check, Evidence, HostReport, Needs
from orchestrator.events import CheckReported

TABLE: tuple[Check, ...] = (*host.CHECKS, *cluster.CHECKS)
PROGRAMS = {check.name: check.ask for check in TABLE if check.ask}


def examined(about: Evidence) -> list[CheckReported]:
    """Return the results of all checks about the hosts, in the order of the table."""
    return [report for check in TABLE for report in check.reports(about)]
