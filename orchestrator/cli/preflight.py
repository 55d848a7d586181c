"""`orchestrate preflight`: can this cluster train? If not: what is wrong, where, and the fix."""

import argparse
import contextlib
import shlex
import sys

from orchestrator.checks.cluster import without
from orchestrator.cli.args import options
from orchestrator.cli.desk.out import bars, say, width
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.errors import ExitStatus, SeveralErrors, status_of
from orchestrator.events import CheckReported, Level
from orchestrator.ranges import expand_all, fold
from orchestrator.render import DisplayGoneError
from orchestrator.render.errors import report, write
from orchestrator.render.grid import wrapped
from orchestrator.render.preflight import preflight_table
from orchestrator.requests import PreflightRequest
from orchestrator.text import count, plain
from orchestrator.verbs.preflight import check, everything


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.chosen(parser)
    options.flag(parser, "--all-pairs", "connect every pair, even with more than 128 hosts")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    request = request_of(PreflightRequest, arguments, person)
    planned = everything(request)
    with bars(json=arguments.json) as emit:
        findings = check(planned, person, emit, all_pairs=request.all_pairs)
    failed, good = findings.failed, findings.good
    if not arguments.json:  # everything, the errors last
        out: tuple[str, ...] = ()
        columns = width()
        if findings.checks:
            out = without(planned.hosts, findings.checks, failed)
            # Hosts that do not respond have a row too; their errors are shown separately.
            rows = [CheckReported(name, "login", Level.FAIL, error.what) for name, error in failed.items()]
            names = [host.name for host in planned.hosts]
            table = preflight_table([*findings.checks, *rows], findings.pairs, columns, hosts=names)
            with contextlib.suppress(DisplayGoneError):  # `| head` has read enough
                write(map(plain, table), sys.stdout)
        if failed:
            sys.stdout.flush()
            report(SeveralErrors(failed.values()), sys.stderr, columns if sys.stderr.isatty() else None)
        say(*wrapped([_summary(arguments, len(planned.hosts), out, good=good)], columns))
    if good:
        return ExitStatus.OK
    checks_fail = any(check.level is Level.FAIL for check in findings.checks)
    return ExitStatus.CLUSTER if checks_fail else status_of(failed.values())


def _summary(arguments: argparse.Namespace, total: int, out: tuple[str, ...], *, good: bool) -> str:
    if good:
        return f"{count(total, 'host')}: ready to train"
    if not out:
        return f"{count(total, 'host')}: this cluster cannot train yet"
    ready, verb = total - len(out), "is" if total - len(out) == 1 else "are"
    names = shlex.quote(fold([*expand_all(arguments.exclude or ""), *out]))
    return f"{ready} of {count(total, 'host')} {verb} ready; `launch --exclude {names}` skips the others"
