"""`launch`: from a request to a plan, its folder and its keeper."""

import os
import shlex
import shutil
from collections.abc import Iterable

from msgspec.structs import replace

from orchestrator.config import values
from orchestrator.config.mistakes import Wrong
from orchestrator.errors import UsageError
from orchestrator.model import Job, Order, RunPlan, TaskId
from orchestrator.names import RunId
from orchestrator.planning import environ
from orchestrator.planning.plan import make
from orchestrator.planning.selection import wanted_tasks
from orchestrator.program.findings import Finding
from orchestrator.requests import LaunchRequest
from orchestrator.store import RunFolder, next_run_id, runs_root
from orchestrator.store.key import key_path, own_key
from orchestrator.sync.contents import CodeSource
from orchestrator.unbroken import unbroken
from orchestrator.value import Value
from orchestrator.verbs import Caller, keeping
from orchestrator.verbs.asking import logins
from orchestrator.verbs.reading import read

_UNSEALED = "from another machine this run can be followed and stopped, but not restarted"


class Planned(Value):
    """A launch that can start."""

    request: LaunchRequest  # the request that a replay repeats
    plan: RunPlan
    code: CodeSource | None  # None: worker_entry
    findings: tuple[Finding, ...]


def launch(
    request: LaunchRequest, caller: Caller, shown: Iterable[TaskId] = (), *, awaited: bool = False
) -> RunFolder:
    """Plan a run, create its folder and start its keeper; raise UsageError before anything is created.

    `shown` are tasks that the run must have. `awaited`: return once the code is read and may be edited.
    """
    key, made = own_key(), prepare(request, caller)
    planned = made.plan
    if key is None:
        unsealed = f"no key could be created ({key_path()}): {_UNSEALED}"
        planned = replace(planned, notes=(*planned.notes, unsealed))
    wanted_tasks(shown, planned, "the run")
    notification = notify_command(request.inventory.job, request.notify)
    secrets = environ.values_here(planned.secrets, os.environ)
    passphrases = logins((*planned.hosts, *planned.spares), caller)

    def begin() -> RunFolder:
        while True:
            plan = replace(planned, run=str(next_run_id(planned.created)))
            if (folder := RunFolder(runs_root(), RunId(plan.run))).claim(plan):
                break  # no other launch has that id
        try:
            folder.write_request(replace(made.request, notify=shlex.join(notification)))
            errand = keeping.Errand(folder, plan, key, passphrases, secrets, made.code, new=True)
            keeping.start(replace(errand, awaited=awaited))
        except BaseException:  # nobody has it: nothing was started
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return folder

    return unbroken(begin, undo=lambda folder: folder.ask_keeper(Order.STOP))


def prepare(request: LaunchRequest, caller: Caller, *, resolves: bool = True) -> Planned:
    """Plan a launch, or a replay of an earlier run; unless it `resolves`, no package index is queried."""
    if request.replay is None:
        given, facts, code = read(request, caller, resolves=resolves)
    else:
        from orchestrator.verbs.replay import read_again  # importing it takes 80 ms, and few launches need it

        given, facts, code = read_again(request, caller)
    plan, findings = make(given, facts)
    if request.terminal is not None:
        wanted_tasks([request.terminal.task], plan, "the run")
    return Planned(given, plan, code, findings)


def notify_command(job: Job, given: str | None) -> tuple[str, ...]:
    """Return the argv of the notification, its program as an absolute path; () for none.

    Raise UsageError if it cannot be executed: when the run has ended, it would be too late.
    """
    try:
        argv = job.notify if given is None else values.command(given)
    except Wrong as wrong:
        raise UsageError(f"--notify {wrong}", hint="`--notify 'mail -s trained me@example.org'`") from wrong
    if not argv:
        return ()
    program = shutil.which(os.path.expanduser(argv[0]))  # noqa: PTH111 - a name without a slash stays one
    if program is None:
        raise UsageError(
            f"--notify: this machine has no program {argv[0]}",
            why="the command runs here, without a shell, when the run has ended",
            hint="write its full path; a script needs `chmod +x`",
        )
    return (os.path.abspath(program), *argv[1:])  # noqa: PTH100 - a link is run by its own name
