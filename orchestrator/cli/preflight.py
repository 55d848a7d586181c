"""`orchestrate preflight`: will this cluster train? If not: what is wrong, where, and the fix."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable

from msgspec.structs import replace

from orchestrator.checks.cluster import without
from orchestrator.cli.args import options
from orchestrator.cli.desk.asking import unconnected
from orchestrator.cli.desk.inventory import chosen
from orchestrator.cli.desk.out import say, width
from orchestrator.errors import ExitStatus, SeveralErrors
from orchestrator.events import CheckReported, Level, Phase, Stamped, encode
from orchestrator.launching.start import make_plan
from orchestrator.model import FrameworkName, Inventory, RunPlan
from orchestrator.phases.context import report_failures
from orchestrator.phases.preflight import Findings, examine
from orchestrator.ranges import expand_all, fold
from orchestrator.render import DisplayGoneError
from orchestrator.render.errors import report, write
from orchestrator.render.grid import wrapped
from orchestrator.render.preflight import preflight_table
from orchestrator.render.progress import awaiting
from orchestrator.store.bus import Bus
from orchestrator.text import count, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.chosen(parser)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    def show(stamped: Stamped) -> None:
        if arguments.json:
            sys.stdout.buffer.write(encode(stamped) + b"\n")
            sys.stdout.buffer.flush()

    planned = everything(chosen(arguments))
    with awaiting() as step:
        findings = check(planned, show, step)
    return _conclude(arguments, planned, findings)


def check(
    planned: RunPlan,
    show: Callable[[Stamped], None] = lambda _: None,
    step: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Examine the hosts of a plan; `show` is given each event, `step` what is awaited."""
    emit, findings = Bus(show).emit, Findings({}, (), (), {})
    with unconnected(planned.hosts) as fleet:
        step(f"connecting to {count(len(planned.hosts), 'host')}")
        unreachable = fleet.connect(planned.hosts)
        report_failures(emit, Phase.CONNECT, unreachable)
        if fleet.sessions:
            findings = examine(fleet, emit, planned, closely=True, on_step=step)
    return replace(findings, failed={**unreachable, **findings.failed})


def _conclude(arguments: argparse.Namespace, planned: RunPlan, findings: Findings) -> int:
    """Show everything, the errors last; the exit status."""
    failed, good = findings.failed, findings.good
    if not arguments.json:
        out: tuple[str, ...] = ()
        columns = width()
        if findings.checks:
            out = without(planned.hosts, findings.checks, failed)
            # A row for hosts that do not answer, too; what is wrong with them is said in their own words.
            rows = [CheckReported(name, "login", Level.FAIL, error.what) for name, error in failed.items()]
            names = [host.name for host in planned.hosts]
            table = preflight_table([*findings.checks, *rows], findings.pairs, columns, hosts=names)
            with contextlib.suppress(DisplayGoneError):  # `| head` has seen enough
                write(map(plain, table), sys.stdout)
        if failed:
            sys.stdout.flush()
            report(SeveralErrors(failed.values()), sys.stderr, columns if sys.stderr.isatty() else None)
        say(*wrapped([_summary(arguments, len(planned.hosts), out, good=good)], columns))
    return ExitStatus.OK if good else ExitStatus.CLUSTER


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
    hosts = tuple(replace(host, spare=False) for host in inventory.hosts)
    job = inventory.job
    # Without a command the tasks would run our program, which is TensorFlow's.
    other = not job.command and job.framework not in (FrameworkName.AUTO, FrameworkName.TENSORFLOW)
    arguments = options.as_launched(command=("train.py",) if other else ())
    whole = replace(inventory, hosts=hosts)
    return make_plan(whole, arguments, sends=False)[0]
