"""`orchestrate pull`: what a run's training wrote, from its hosts into a folder here."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from orchestrator.cli.finding import find_run
from orchestrator.cli.logins import logins
from orchestrator.errors import ExitStatus, HostError, SeveralErrors, UsageError
from orchestrator.events import TaskStarted, TreeSynced
from orchestrator.fleet import Fleet, Session
from orchestrator.model import Role, RunPlan
from orchestrator.render.progress import progress
from orchestrator.store import RunFolder, runs
from orchestrator.store.reader import events_of
from orchestrator.sync import pull
from orchestrator.sync.files import work_folder
from orchestrator.text import count, size


def main(arguments: argparse.Namespace) -> int:
    folder = _find(arguments)
    plan = folder.read_plan()
    names = [host.name for host in plan.hosts] if arguments.all else [_source(plan, arguments.source)]
    for path in arguments.paths:
        if os.path.normpath(path).startswith(".."):
            raise UsageError(f"{path} leads out of the run's work folder", hint="give it as an absolute path")
    to = Path(arguments.to or folder.run)
    fresh = arguments.to is None and not os.path.lexists(to)
    if os.path.lexists(to) and not to.is_dir():
        raise UsageError(
            f"{to} is no folder",
            why="what is pulled goes into one",
            hint="--to another name: it will be made",
        )
    from orchestrator.connectors import connectors

    hosts = [plan.host(name) for name in names]
    fleet = Fleet(connectors(logins(hosts)), lambda _frame: None)
    errors: list[HostError] = []
    try:
        bad = fleet.connect(hosts)
        errors += bad.values()
        for name in names:
            if name in fleet.sessions:
                try:
                    _pull(folder, fleet.sessions[name], arguments, to / name if arguments.all else to)
                except HostError as error:
                    errors.append(error)
    finally:
        fleet.close()
    if fresh and to.is_dir():
        pull.keep_from_launches(to, folder.run)
    _tell(errors, some=len(errors) < len(names))
    return int(ExitStatus.OK)


def _tell(errors: list[HostError], *, some: bool) -> None:
    """Raise what went wrong; a path that only some hosts have is only said: the chief alone writes most."""
    absent = [error for error in errors if error.kind == "missing"]
    if some:
        for error in absent:
            print(f"{error.host}: {error.what}", file=sys.stderr)
        errors = [error for error in errors if error not in absent]
    elif len(absent) == len(errors):
        first = absent[0]
        raise UsageError(f"{first.host} {first.what}", why=first.why, hint=first.hint)
    if errors:
        raise errors[0] if len(errors) == 1 else SeveralErrors(errors)


def _pull(folder: RunFolder, session: Session, arguments: argparse.Namespace, to: Path) -> None:
    name = session.host.name
    work = work_folder(session.host.workdir, folder.run)
    code: set[tuple[str, int]] = set() if arguments.code else _code(folder, session, work)
    paths = [os.path.normpath(path) for path in arguments.paths]
    parts = pull.choose(session, work, paths, code)
    with progress(f"{name}: {folder.run}", sum(part.size for part in parts)) as told:
        came = pull.take(session, parts, to, folder.run, told)
    found = sum(part.files for part in parts)
    if not found:
        print(f"{name}: its tasks wrote nothing in {work}; the code is left out (--code)", file=sys.stderr)
        return
    here = found - came.files
    same = f", {here} {'was' if here == 1 else 'were'} here already" if here else ""
    print(
        f"{name}: {count(came.files, 'file')}, {size(came.bytes)} in {came.seconds:.1f} s{same}",
        file=sys.stderr,
    )
    print(to)


def _code(folder: RunFolder, session: Session, work: str) -> set[tuple[str, int]]:
    """The code as it was sent; nothing of it when this machine does not know when the tasks started."""
    events = events_of(folder)
    started = min((one.at for one in events if isinstance(one.event, TaskStarted)), default=None)
    trees = {
        f"{session.host.workdir}/trees/{one.event.digest}"
        for one in events
        if isinstance(one.event, TreeSynced)
    }
    if started is None:
        return set()
    return pull.code_of(session, sorted(trees), started + session.clock_offset, work)


def _find(arguments: argparse.Namespace) -> RunFolder:
    try:
        return find_run(arguments.run, arguments.hosts)
    except UsageError as error:
        newest = next(iter(runs()), None)
        if arguments.run is None or newest is None:
            raise
        hint = f"paths come after the run: orchestrate pull {newest.run} {arguments.run}"
        raise UsageError(error.what, why=error.why, hint=hint) from error


def _source(plan: RunPlan, wanted: str | None) -> str:
    """The host to pull from: named, or of a task; without either the chief's, who writes checkpoints."""
    if wanted is None:
        order = (Role.CHIEF, Role.WORKER)
        tasks = [spec for role in order for spec in plan.tasks if spec.id.role is role]
        return (tasks or list(plan.tasks))[0].host
    for spec in plan.tasks:
        if wanted in (str(spec.id), spec.id.slug, spec.host):
            return spec.host
    known = ", ".join(f"{spec.id} ({spec.host})" for spec in plan.tasks)
    raise UsageError(
        f"run {plan.run} has no {wanted}", why=f"it has {known}", hint="--from worker/0, or a host"
    )
