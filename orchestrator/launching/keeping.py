"""Starting keepers: a process of its own session that outlives the terminal and the viewer."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from orchestrator import timings
from orchestrator.errors import ExitStatus, RunError
from orchestrator.launching.debuglog import log_to_stderr, open_debug_log
from orchestrator.model import Order, RunPlan
from orchestrator.node.base.descriptors import close_others
from orchestrator.store import RunFolder

if TYPE_CHECKING:
    from orchestrator.launching.code import Project
    from orchestrator.phases.context import CodeSource, Run
    from orchestrator.ssh.keys import Secrets


# Open files that a keeper wants: a few for each task and host. macOS allows 256, and where it names no upper
# bound it may still refuse more than the second.
_FILES = (65_536, 10_240)
_kept: list[object] = []
_GLANCE = 0.1  # seconds; whoever only looks whether there is a keeper holds the lock for less


def owner() -> str:
    """Name the person who starts runs here: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def keep_new(
    folder: RunFolder,
    plan: RunPlan,
    project: Project | None,
    secrets: Mapping[str, str],
    *,
    key: bytes | None,
    asked: Secrets | None,
) -> None:
    """Fork the keeper of a new run; its folder is all that connects it with us."""

    def work(control: int) -> int:
        from orchestrator.phases import keeper
        from orchestrator.phases.context import CodeSource

        source = CodeSource() if project is None else project.source()
        with _run(folder, plan, source, secrets, key=key, asked=asked) as run:
            return keeper.keep_new(run, control)

    _fork(folder, work)


def keep_adopted(
    folder: RunFolder,
    plan: RunPlan,
    key: bytes | None,
    asked: Secrets | None,
    *,
    stop: Order | None = None,
) -> bool:
    """Fork a keeper that takes over a run; False when it has one already.

    `stop` (STOP or KILL) is what it is asked for from the start.
    """
    # A restart needs them; what this machine does not have is said then. A plan that is not ours could name
    # whatever this environment holds.
    names = () if plan.hearsay else plan.secrets
    secrets = {name: os.environ[name] for name in names if name in os.environ}

    def work(control: int) -> int:
        from orchestrator.phases import keeper
        from orchestrator.phases.context import CodeSource

        with _run(folder, plan, CodeSource(), secrets, key=key, asked=asked) as run:
            if stop is not None:
                run.stop.ask(kill=stop is Order.KILL)
            return keeper.keep_adopted(run, control)

    return _fork(folder, work, required=False)


@contextlib.contextmanager
def _run(
    folder: RunFolder,
    plan: RunPlan,
    source: CodeSource,
    secrets: Mapping[str, str],
    *,
    key: bytes | None,
    asked: Secrets | None,
) -> Iterator[Run]:
    """The run in the hands of its keeper; at the end its events are on disk."""
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet
    from orchestrator.phases.context import Inbox, Run
    from orchestrator.store.bus import Bus
    from orchestrator.store.eventlog import EventLog
    from orchestrator.store.known import state_root
    from orchestrator.store.validations import Validations

    inbox = Inbox()
    patience = timings.read(os.environ)
    fleet = Fleet(connectors(asked), inbox.put, patience)
    who = f"{owner()}, pid {os.getpid()}"
    log = EventLog(folder)
    try:
        yield Run(
            folder,
            plan,
            Bus(log),
            fleet,
            inbox,
            who,
            source,
            secrets,
            patience,
            key,
            Validations(state_root() / "validated"),
        )
    finally:
        log.finish()


def _fork(folder: RunFolder, work: Callable[[int], int], *, required: bool = True) -> bool:
    lock = folder.take_lock()
    deadline = time.monotonic() + _GLANCE
    while lock is None:
        if time.monotonic() > deadline:
            if required:
                raise RunError(f"run {folder.run} has a keeper already")
            return False
        time.sleep(0.01)
        lock = folder.take_lock()
    control = folder.open_control()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become_keeper(folder, lock, control, work)
    os.close(lock)
    os.close(control)
    os.waitpid(child, 0)
    return True


def _become_keeper(folder: RunFolder, lock: int, control: int, work: Callable[[int], int]) -> None:
    """Leave the terminal and the viewer behind, do the work, and leave; never returns."""
    status = int(ExitStatus.BUG)
    try:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)  # the keeper is nobody's child: no zombie, no controlling terminal
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        debug = open_debug_log(folder.debug_log)
        os.dup2(null, 0)
        os.dup2(debug, 1)
        os.dup2(debug, 2)
        close_others({0, 1, 2, lock, control})
        # Ours may have been others, whose numbers are free now and soon somebody else's.
        _kept.extend((sys.stdout, sys.stderr))  # let go of, they might close 1 and 2
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
        sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
        _allow_files()
        log_to_stderr()
        # It logs a traceback for every host that cannot be reached, which is told as an error anyway.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        status = work(control)
    except BaseException:
        logging.getLogger("orchestrate").exception("the keeper failed")
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _allow_files() -> None:
    """Raise the limit of open files as far as may be; what cannot be had is done without."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for files in _FILES:
        wanted = files if hard == resource.RLIM_INFINITY else min(files, hard)
        if soft == resource.RLIM_INFINITY or wanted <= soft:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
