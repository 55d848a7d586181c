"""`launch`: from a request to a plan, its folder and its keeper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from orchestrator.config import values
from orchestrator.config.mistakes import Wrong
from orchestrator.errors import UsageError
from orchestrator.model import Job, Order, RunPlan
from orchestrator.names import RunId
from orchestrator.planning import environ
from orchestrator.requests import LaunchRequest
from orchestrator.store import RunFolder, runs_root
from orchestrator.store.key import key_path, own_key
from orchestrator.unbroken import unbroken
from orchestrator.verbs import Caller, keeping
from orchestrator.verbs.asking import logins
from orchestrator.verbs.environment import with_header
from orchestrator.verbs.plan import Planned, make_plan, wanted_tasks

_UNSEALED = "from another machine this run can be followed and stopped, and not started again"


def prepare(
    request: LaunchRequest, caller: Caller, *, resolves: bool = True, notes: tuple[str, ...] = ()
) -> Planned:
    """Plan a launch, new or of an earlier run; unless it `resolves`, no package index is asked."""
    if request.replay is None:
        request, header = with_header(request)
        made = make_plan(request, resolves=resolves, notes=(*notes, *header))
    else:
        from orchestrator.verbs.replay import plan_again  # 80 ms that few launches need

        made = plan_again(request, caller, notes)
    if request.terminal is not None:
        wanted_tasks([request.terminal.task], made.plan, "the run")
    return made


def launch(
    request: LaunchRequest, caller: Caller, check: Callable[[RunPlan], object] = lambda _: None
) -> RunFolder:
    """Plan a run, make its folder and start its keeper; raise UsageError before anything was made.

    `check` may raise for a plan that the caller has no use for.
    """
    key = own_key()
    unsealed = () if key is not None else (f"no key could be made ({key_path()}): {_UNSEALED}",)
    made = prepare(request, caller, notes=unsealed)
    planned = made.plan
    check(planned)
    told = notify_command(request.inventory.job, request.notify)
    secrets = environ.values_here(planned.secrets, os.environ)
    asked = logins((*planned.hosts, *planned.spares), caller)
    folder = RunFolder(runs_root(), RunId(planned.run))

    def begin() -> RunFolder:
        folder.create(planned)
        folder.write_request(made.request)
        if told:
            folder.write_words(folder.notify, told)
        if request.metrics:
            folder.write_words(folder.metrics, [str(Path(request.metrics).absolute())])
        keeping.start(keeping.Errand(folder, planned, key, asked, secrets, made.code, new=True))
        return folder

    return unbroken(begin, undo=lambda folder: folder.ask_keeper(Order.STOP))


def notify_command(job: Job, wanted: str | None) -> tuple[str, ...]:
    """The argv that tells of the end, its program as an absolute path; () for none.

    Raise UsageError for one that could not be run: at the end of a night it would be too late.
    """
    try:
        argv = job.notify if wanted is None else values.command(wanted)
    except Wrong as wrong:
        raise UsageError(f"--notify {wrong}", hint="`--notify 'mail -s trained me@example.org'`") from wrong
    if not argv:
        return ()
    program = shutil.which(os.path.expanduser(argv[0]))  # noqa: PTH111 - a name without a slash stays one
    if program is None:
        raise UsageError(
            f"--notify: this machine has no program {argv[0]}",
            why="it is run here, by no shell, when the run has ended",
            hint="write its whole path; a script needs `chmod +x`",
        )
    return (os.path.abspath(program), *argv[1:])  # noqa: PTH100 - a link is run by its own name
