"""Checks of preflight: facts in, `CheckReported` out. Pure.

A check is a row of the table: its name, the judgment, and a fix. `host.py` has the checks of a single
machine, `cluster.py` those that compare machines or test their connections.
"""

from orchestrator.checks import cluster, host
from orchestrator.checks.host import described
from orchestrator.checks.report import MODULES, PACKAGES, Check, Evidence, HostReport, Needs
from orchestrator.events import CheckReported
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import FrameworkName

TABLE: tuple[Check, ...] = (*host.CHECKS, *cluster.CHECKS)


def programs(framework: FrameworkName) -> dict[str, tuple[str, ...]]:
    """Return programs for hosts to run for the checks of a framework: `facts.answers` has their output."""
    return {"hostname": cluster.OWN_NAME} if FRAMEWORKS[framework].gloo else {}


def examined(about: Evidence) -> list[CheckReported]:
    """Return the results of all checks about the hosts, in the order of the table."""
    return [report for check in TABLE for report in check.reports(about)]
