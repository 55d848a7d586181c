"""Starting keepers: a process of its own session that outlives the terminal and the viewer."""

from __future__ import annotations

import contextlib
import gc
import getpass
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orchestrator import timings
from orchestrator.errors import ExitStatus
from orchestrator.model import Order, RunPlan
from orchestrator.node.base.descriptors import close_others
from orchestrator.plainfile import open_plain
from orchestrator.store import RunFolder
from orchestrator.text import plain
from orchestrator.verbs import python

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets
    from orchestrator.sync.contents import CodeSource


# Open files that a keeper wants: a few for each task and host. macOS allows 256, and no more than this.
_FILES = 10_240
_GLANCE = 0.1  # seconds; whoever only looks whether there is a keeper holds the lock for less


def owner() -> str:
    """Name the person who starts runs here: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Errand(Struct, frozen=True):
    """A keeper's task, with all that it cannot read in the run's folder."""

    folder: RunFolder
    plan: RunPlan
    key: bytes | None  # with which the user's plans are sealed
    logins: Secrets | None
    secrets: Mapping[str, str]
    source: CodeSource | None = None
    new: bool = False  # False: a run is taken over
    stop: Order | None = None  # STOP or KILL: asked for from the start


def start(errand: Errand) -> bool:
    """Start a keeper, which the run's folder alone connects with us; return False when the run has one."""
    folder = errand.folder
    lock = folder.take_lock()
    deadline = time.monotonic() + _GLANCE
    while lock is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
        lock = folder.take_lock()
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, lock)
        control = folder.open_control()
        closing.callback(os.close, control)
        python.hand_over(pickle.dumps(errand), (lock, control))
    return True


def main() -> None:
    """Leave whoever started us, do the errand that comes by stdin, and leave; never return."""
    gc.set_threshold(200_000, 20, 20)  # what is imported stays: a tenth of the time was spent looking at it
    close_others((0, 1, 2))  # what whoever started us has open may be waited for
    with contextlib.suppress(Exception):  # where it is needed, it is missed
        from orchestrator.phases import keeper  # noqa: F401 - while the run is planned
        from orchestrator.ssh import connect  # noqa: F401
    with socket.socket(fileno=os.dup(0)) as asked:
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 2)
    if not descriptors or os.fork() > 0:
        os._exit(0)  # the keeper is nobody's child: no zombie, no controlling terminal
    status = int(ExitStatus.BUG)
    try:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        errand = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - nobody else has that socket
        for descriptor in descriptors:  # the lock, which stays open, and the control
            os.set_inheritable(descriptor, False)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            debug = open_plain(errand.folder.debug_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError:
            debug = os.open(os.devnull, os.O_WRONLY)
        os.dup2(debug, 1)
        os.dup2(debug, 2)
        _allow_files()
        _log_to_stderr()
        # It logs a traceback for every host that cannot be reached, which is told as an error anyway.
        logging.getLogger("orchestrate.paramiko").setLevel(logging.CRITICAL)
        status = _keep(errand, descriptors[1])
    except BaseException:
        logging.getLogger("orchestrate").exception("the keeper failed")
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
            if (programs := sys.modules.get("orchestrator.processes")) is not None:
                programs.end_all()
        os._exit(status)


def _keep(errand: Errand, control: int) -> int:
    """Keep a run to its end; then its events are on disk."""
    from orchestrator.connectors import Connectors
    from orchestrator.fleet import Fleet
    from orchestrator.phases import keeper
    from orchestrator.phases.context import Run
    from orchestrator.phases.loop import Loop
    from orchestrator.store.bus import Bus, EventLog
    from orchestrator.store.points import PointFile
    from orchestrator.store.reader import events_of

    loop = Loop()
    patience = timings.read(os.environ)
    log = EventLog(errand.folder)
    if paths := errand.folder.read_words(errand.folder.metrics):
        from orchestrator.store.metrics import MetricsFile
    metrics = [MetricsFile(Path(path), events_of(errand.folder)) for path in paths]
    emit = Bus(log, *metrics).emit
    for one in metrics:
        one.start(emit)
    try:
        run = Run(
            errand.folder,
            errand.plan,
            emit,
            Fleet(Connectors(errand.logins), loop.put, patience, loop),
            loop,
            f"{owner()}, pid {os.getpid()}",
            errand.source,
            errand.secrets,
            patience,
            errand.key,
            points=PointFile(errand.folder.points, len(errand.plan.tasks)),
        )
        if errand.stop is not None:
            run.stop.ask(kill=errand.stop is Order.KILL)
        return keeper.keep(run, control, new=errand.new)
    finally:
        for one in metrics:
            one.finish()
        log.finish()


def _allow_files() -> None:
    """Raise the limit of open files as far as may be; what cannot be had is done without."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_to_stderr() -> None:
    """Log there from now on, the exceptions of threads included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Harmless("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # A full disk must not fill it with reports that it is full.
    logging.raiseExceptions = False
    threading.excepthook = _of_a_thread


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(plain, super().format(record).split("\n")))


def _of_a_thread(arguments: Any) -> None:
    logging.getLogger("orchestrate").error("%s failed", arguments.thread, exc_info=arguments[:3])
