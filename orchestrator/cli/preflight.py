"""`orchestrate preflight`: will this cluster train? If not: what is wrong, where, and the fix."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import say
from orchestrator.errors import ExitStatus, HostError, SeveralErrors
from orchestrator.ranges import expand_all, fold
from orchestrator.text import count, plain

if TYPE_CHECKING:
    from orchestrator.events import CheckReported, Stamped
    from orchestrator.fleet import Fleet
    from orchestrator.model import Data, Inventory, RunPlan
    from orchestrator.phases.preflight import Findings
    from orchestrator.store.bus import Bus

SUMMARY = "check every host and every pair of hosts"
_COLUMNS, _NAMED = 80, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.chosen(parser)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk.asking import unconnected
    from orchestrator.cli.desk.inventory import load
    from orchestrator.eventjson import encode
    from orchestrator.events import Phase
    from orchestrator.launching.data import check_data
    from orchestrator.phases.context import report_failures
    from orchestrator.phases.preflight import examine
    from orchestrator.planning.selection import narrow
    from orchestrator.render.progress import awaiting
    from orchestrator.store.bus import Bus

    inventory = narrow(load(arguments.hosts), arguments.only, arguments.exclude)

    def show(stamped: Stamped) -> None:
        if arguments.json:
            sys.stdout.buffer.write(encode(stamped) + b"\n")
            sys.stdout.buffer.flush()

    check_data(inventory)
    planned = everything(inventory)
    bus = Bus(show)
    with unconnected(planned.hosts) as fleet, awaiting() as step:
        unreachable = _connect(fleet, planned, step)
        report_failures(bus, Phase.CONNECT, unreachable)
        findings = examine(fleet, bus, planned, closely=True, on_step=step) if fleet.sessions else None
        if findings is not None and inventory.data is not None:
            findings = _with_data(fleet, bus, planned, inventory.data, findings)
    return _conclude(arguments, planned, findings, unreachable)


def _with_data(fleet: Fleet, bus: Bus, planned: RunPlan, data: Data, findings: Findings) -> Findings:
    """The findings, and who lacks what of [data]."""
    import dataclasses

    from orchestrator.phases.data import checks

    of_data = checks(fleet, planned.hosts, data)
    for check in of_data:
        bus.emit(check)
    return dataclasses.replace(findings, checks=(*findings.checks, *of_data))


def _connect(fleet: Fleet, planned: RunPlan, step: Callable[[str], None]) -> dict[str, HostError]:
    """Name those that have not answered yet, as they become fewer."""
    waiting = {host.name for host in planned.hosts}
    step(f"connecting to {count(len(waiting), 'host')}")

    def connected(name: str) -> None:
        waiting.discard(name)
        if 0 < len(waiting) <= _NAMED:  # all of them, at each answer, would cost a square of the hosts
            step(f"connecting to {fold(waiting)}")

    return fleet.connect(planned.hosts, lambda session, _seconds: connected(session.host.name))


def _conclude(
    arguments: argparse.Namespace,
    planned: RunPlan,
    findings: Findings | None,
    unreachable: Mapping[str, HostError],
) -> int:
    """Show everything, the errors last; the exit status."""
    from orchestrator.checks.network import without
    from orchestrator.render import DisplayGoneError
    from orchestrator.render.errors import report, write
    from orchestrator.render.preflight import preflight_table
    from orchestrator.render.wrap import wrapped

    failed = {**unreachable, **(findings.failed if findings else {})}
    good = findings is not None and findings.good and not unreachable
    checks = [*(findings.checks if findings else ()), *_unanswered(failed)]
    pairs = findings.pairs if findings else ()
    out = () if findings is None else without(planned.hosts, findings.checks, pairs, failed)
    summary = _summary(arguments, len(planned.hosts), out, good=good)
    names = [host.name for host in planned.hosts]
    if not arguments.json:
        width = shutil.get_terminal_size((_COLUMNS, 24)).columns if sys.stdout.isatty() else None
        if findings is not None:
            with contextlib.suppress(DisplayGoneError):  # `| head` has seen enough
                write(map(plain, preflight_table(checks, pairs, width, hosts=names)), sys.stdout)
        if failed:
            sys.stdout.flush()
            report(SeveralErrors(failed.values()), sys.stderr, width if sys.stderr.isatty() else None)
        say(*wrapped([summary], width))
    return int(ExitStatus.OK if good else ExitStatus.CLUSTER)


def _unanswered(failed: Mapping[str, HostError]) -> list[CheckReported]:
    """A row of the table for hosts that do not answer; what is wrong with them is said in their own words."""
    from orchestrator.events import CheckReported, Level

    return [
        CheckReported(name, "login", Level.FAIL, error.what, error.why, error.hint)
        for name, error in failed.items()
    ]


def _summary(arguments: argparse.Namespace, total: int, out: tuple[str, ...], *, good: bool) -> str:
    if good:
        return f"{count(total, 'host')}: ready to train"
    if not out:
        return f"{count(total, 'host')}: this cluster cannot train yet"
    ready, verb = total - len(out), "is" if total - len(out) == 1 else "are"
    names = shlex.quote(fold([*expand_all(arguments.exclude or ""), *out]))
    return f"{ready} of {count(total, 'host')} {verb} ready; `launch --exclude {names}` leaves out the others"


def everything(inventory: Inventory) -> RunPlan:
    """A plan of the job on all hosts, spares too: they are checked as if they had a task."""
    import dataclasses

    from orchestrator.launching.environment import planned_environment
    from orchestrator.launching.keeping import owner
    from orchestrator.planning.plan import assign

    inventory, environment = planned_environment(inventory)
    hosts = tuple(dataclasses.replace(host, spare=False) for host in inventory.hosts)
    planned = assign(
        dataclasses.replace(inventory, hosts=hosts),
        command=(),
        env={},
        name="",
        run="preflight",
        owner=owner(),
        created=time.time(),
        environ=os.environ,
    )
    return dataclasses.replace(planned, environment=environment)
