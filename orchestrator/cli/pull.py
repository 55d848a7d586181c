"""`orchestrate pull`: what a run's training wrote, from its hosts into a folder here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from orchestrator import slurm
from orchestrator.cli.args import options
from orchestrator.cli.desk.asking import asking
from orchestrator.cli.desk.finding import find_run, history, source_of
from orchestrator.cli.desk.out import say, silent, tell
from orchestrator.errors import ExitStatus, HostError, SeveralErrors, Trouble, UsageError
from orchestrator.events import TaskStarted, TreeSynced
from orchestrator.fleet import Session
from orchestrator.model import LOCAL
from orchestrator.render.progress import progress
from orchestrator.store import RunFolder
from orchestrator.sync import pull
from orchestrator.sync.files import LEFT_OUT, work_folder
from orchestrator.sync.pull import keep_from_launches
from orchestrator.text import count, plain, size, some

_SHOWN = 5  # names that a line shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="in its work folder, or absolute; may hold * and ? (default: all that was written there)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--from",
        dest="source",
        metavar="worker/0",
        help="a task or host (default: the chief, or worker/0)",
    )
    which.add_argument("--all", action="store_true", help="from every host, each into a folder of its name")
    parser.add_argument("--to", metavar="DIR", help="where to (default: ./RUN)")


def main(arguments: argparse.Namespace) -> int:
    fetch(arguments, lambda folder: say(str(folder)))
    return ExitStatus.OK


def fetch(arguments: argparse.Namespace, on_folder: Callable[[Path], None]) -> None:
    """Fetch what a run wrote; `on_folder` is given each folder that something came into."""
    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    names = [host.name for host in plan.hosts] if arguments.all else [source_of(plan, arguments.source)]
    for path in arguments.paths:
        if os.path.normpath(path).startswith(".."):
            raise UsageError(f"{path} leads out of the run's work folder", hint="give it as an absolute path")
    to = Path(arguments.to or folder.run)
    fresh = arguments.to is None and not os.path.lexists(to)
    if os.path.lexists(to) and not to.is_dir():
        raise UsageError(
            f"{to} is not a folder",
            why="what is pulled goes into one",
            hint="name another folder with --to: it will be made",
        )
    hosts = [plan.host(name) for name in names]
    if hosts[0].job and slurm.look(hosts[0].job, ()).over:  # its nodes are others' now: the home is shared
        hosts = [replace(host, ssh=LOCAL) for host in hosts]
    errors: list[HostError] = []
    with asking(hosts) as (fleet, bad):
        errors += bad.values()
        for name in names:
            if name in fleet.sessions:
                try:
                    into = to / name if arguments.all else to
                    if _pull(folder, fleet.sessions[name], arguments, into):
                        on_folder(into)
                except HostError as error:
                    errors.append(error)
    if fresh and to.is_dir():
        keep_from_launches(to, folder.run)
    _tell(errors, some=len(errors) < len(names))


def _tell(errors: list[HostError], *, some: bool) -> None:
    """Raise what went wrong; a path that only some hosts have is only said: the chief alone writes most."""
    absent = [error for error in errors if error.kind == Trouble.MISSING]
    if some:
        for error in absent:
            tell(f"{error.host}: {error.what}")
        errors = [error for error in errors if error not in absent]
    elif len(absent) == len(errors):
        first = absent[0]
        raise UsageError(f"{first.host} {first.what}", why=first.why, hint=first.hint)
    if errors:
        raise errors[0] if len(errors) == 1 else SeveralErrors(errors)


def _pull(folder: RunFolder, session: Session, arguments: argparse.Namespace, to: Path) -> bool:
    """Return False when its tasks wrote nothing."""
    name = session.host.name
    cwd = folder.read_plan().cwd if arguments.paths else ""  # paths are those that the tasks know
    work = work_folder(session.host.workdir, folder.run, cwd)
    trees, before = _code(folder, session, cwd)
    paths = [os.path.normpath(path) for path in arguments.paths]
    parts = pull.choose(session, work, paths, trees, before)
    if left_out := [part.below + one for part in parts for one in part.left_out]:
        tell(f"{name}: left out ({LEFT_OUT}): {some([plain(one)[:200] for one in left_out], _SHOWN)}")
    found = sum(len(part.entries) for part in parts)
    if not found:
        tell(f"{name}: its tasks wrote nothing in {work}; unchanged code is left out")
        return False
    with progress(f"{name}: {folder.run}", sum(part.size for part in parts), quiet=silent.get()) as told:
        came = pull.take(session, parts, to, folder.run, told)
    here = found - came.files
    same = f", {here} {'was' if here == 1 else 'were'} here already" if here else ""
    tell(f"{name}: {count(came.files, 'file')}, {size(came.bytes)} in {came.seconds:.1f} s{same}")
    return True


def _code(folder: RunFolder, session: Session, cwd: str) -> tuple[list[str], float]:
    """The trees that were sent, and when the tasks started; none where this machine does not know that."""
    events = history(folder)
    started = min((one.at for one in events if isinstance(one.event, TaskStarted)), default=None)
    if started is None:
        return [], 0.0
    digests = {one.event.digest for one in events if isinstance(one.event, TreeSynced)}
    trees = ("/".join(filter(None, (session.host.workdir, "trees", digest, cwd))) for digest in digests)
    return sorted(trees), started + session.clock_offset
