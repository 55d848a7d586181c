"""`pull`: copy what a run's training wrote from its hosts into a local folder."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from orchestrator import slurm
from orchestrator.errors import HostError, OrchestrateError, SeveralErrors, Trouble, UsageError
from orchestrator.events import Stepped, TaskStarted, TreeSynced
from orchestrator.fleet import Session
from orchestrator.model import LOCAL
from orchestrator.phases.context import Emit
from orchestrator.plainfile import tail_of
from orchestrator.requests import PullRequest
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of
from orchestrator.sync import pull
from orchestrator.sync.files import LEFT_OUT, work_folder
from orchestrator.sync.pull import Fetched, keep_from_launches
from orchestrator.text import count, plain, size, some
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import asking
from orchestrator.verbs.finding import source_of

_SHOWN = 5  # names on one line
# As torch.distributed.checkpoint names the parts of a checkpoint in its index, .metadata, and bytes of that.
_SHARD, _MOST = re.compile(rb"__\d+_\d+\.distcp"), 64 << 20


def fetch(
    folder: RunFolder,
    request: PullRequest,
    caller: Caller,
    emit: Emit,
    on_folder: Callable[[Path], None] = lambda _: None,
) -> list[Path]:
    """Fetch what a run wrote; return the folders that received files, each also passed to `on_folder`."""
    plan = folder.read_plan()
    names = [host.name for host in plan.hosts] if request.all_hosts else [source_of(plan, request.source)]
    for path in request.paths:
        if os.path.normpath(path).startswith(".."):
            raise UsageError(f"{path} leads out of the run's work folder", hint="use an absolute path")
    to = Path(request.to or folder.run)
    fresh = request.to is None and not os.path.lexists(to)
    above = next(parent for parent in (to, *to.absolute().parents) if os.path.lexists(parent))
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(
            f"{above} {'cannot be written' if above.is_dir() else 'is not a folder'}",
            why="the fetched files need a folder",
            hint="name another folder with --to; it is created if needed",
        )
    hosts = [plan.host(name) for name in names]
    # The nodes of a job that is over may belong to others now, but the home folder is shared.
    if hosts[0].job and slurm.look(hosts[0].job, ()).over:
        hosts = [replace(host, ssh=LOCAL) for host in hosts]
    errors: list[HostError] = []
    filled: list[Path] = []
    with asking(hosts, caller) as (fleet, bad):
        errors += bad.values()
        for name in names:
            if name in fleet.sessions:
                try:
                    into = to / name if request.all_hosts else to
                    came = _pull(folder, fleet.sessions[name], request, into, caller, emit=emit)
                    if came is not None:
                        filled.append(into)
                        on_folder(into)
                    if came is not None and came.torn:
                        errors.append(_torn(name, came))
                except HostError as error:
                    errors.append(error)
    if fresh and to.is_dir():
        keep_from_launches(to)
    _conclude(errors, caller, some=len(errors) < len(names))
    return filled


def _conclude(errors: list[HostError], caller: Caller, *, some: bool) -> None:
    """Raise the errors; a path missing on some hosts is only a notice: usually only the chief writes."""
    absent = [error for error in errors if error.kind == Trouble.MISSING]
    if some:
        for error in absent:
            caller.tell(f"{error.host}: {error.what}")
        errors = [error for error in errors if error not in absent]
    elif len(absent) == len(errors):
        first = absent[0]
        raise UsageError(f"{first.host} {first.what}", why=first.why, hint=first.hint)
    if errors:
        raise errors[0] if len(errors) == 1 else SeveralErrors(errors)


def _pull(
    folder: RunFolder, session: Session, request: PullRequest, to: Path, caller: Caller, *, emit: Emit
) -> Fetched | None:
    """Fetch what a host's tasks wrote; return None if they wrote nothing."""
    name = session.host.name
    plan = folder.read_plan()
    cwd = plan.cwd if request.paths else ""  # paths as the tasks see them
    work = work_folder(session.host.workdir, plan.folder, cwd)
    trees, before = _code(folder, session, cwd, caller)
    paths = [os.path.normpath(path) for path in request.paths]
    parts = pull.choose(session, work, paths, trees, before)
    if left_out := [part.below + path for part in parts for path in part.left_out]:
        caller.tell(f"{name}: skipped ({LEFT_OUT}): {_some(left_out)}")
    total = sum(len(part.entries) for part in parts)
    if not total:
        caller.tell(f"{name}: its tasks wrote nothing in {work}; unchanged code is not fetched")
        return None
    done, size_of_all = 0, sum(part.size for part in parts)

    def on_bytes(number: int) -> None:
        nonlocal done
        done += number
        emit(Stepped(name, "receives files", done, size_of_all))

    came = pull.take(session, parts, to, folder.run, on_bytes)
    emit(Stepped(name, ""))
    same = f", {came.same} {'was' if came.same == 1 else 'were'} here already" if came.same else ""
    caller.tell(f"{name}: {count(came.files, 'file')}, {size(came.bytes)} in {came.seconds:.1f} s{same}")
    here = {part.below + entry.path for part in parts for entry in part.entries}
    lacking = {
        path.removesuffix(".metadata") + shard.decode()
        for path in here
        if path.endswith(".metadata")
        for shard in _SHARD.findall(tail_of(to / path, _MOST)[0])
    } - here
    if lacking and not request.all_hosts:
        lacks = f"{name} lacks {min(lacking)}, a part of a checkpoint"
        caller.tell(f"{lacks}: --all fetches the parts on other hosts, too")
    if came.grown:
        caller.tell(f"{name}: only their beginning, since they are still being written: {_some(came.grown)}")
    return came


def _torn(host: str, came: Fetched) -> HostError:
    why = f"changed each time that they were read: {_some(came.torn)}"
    return HostError(host, "has files that could not be fetched", kind="changed", why=why, hint="pull again")


def _some(paths: Sequence[str]) -> str:
    return some([plain(path)[:200] for path in paths], _SHOWN)


def _code(folder: RunFolder, session: Session, cwd: str, caller: Caller) -> tuple[list[str], float]:
    """Return the trees that were sent, and when the tasks started; nothing if this machine has no record."""
    try:
        events = events_of(folder)
    except OrchestrateError as error:
        caller.warn(error)
        return [], 0.0
    started = min((stamped.at for stamped in events if isinstance(stamped.event, TaskStarted)), default=None)
    if started is None:
        return [], 0.0
    digests = {stamped.event.digest for stamped in events if isinstance(stamped.event, TreeSynced)}
    if (resumed := folder.read_plan().resumed) is not None:
        digests |= set(resumed.trees)
    trees = ("/".join(filter(None, (session.host.workdir, "trees", digest, cwd))) for digest in digests)
    return sorted(trees), started + session.clock_offset
