"""Starting keepers: a process with its own session that outlives the terminal and the viewer."""

from __future__ import annotations

import contextlib
import gc
import getpass
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import processes, timings
from orchestrator.errors import ExitStatus
from orchestrator.model import Order, RunPlan
from orchestrator.node.base.descriptors import close_others
from orchestrator.plainfile import open_plain
from orchestrator.store import RunFolder
from orchestrator.text import plain
from orchestrator.value import Value
from orchestrator.verbs import python

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets
    from orchestrator.sync.contents import CodeSource


_GLANCE = 0.1  # seconds; a check for a keeper holds the lock for less


def owner() -> str:
    """Return the owner of runs that start here: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Errand(Value):
    """What a new keeper has to do, with everything it cannot read from the run's folder."""

    folder: RunFolder
    plan: RunPlan
    key: bytes | None  # seals the user's plans
    logins: Secrets | None
    secrets: Mapping[str, str]
    source: CodeSource | None = None
    new: bool = False  # False: a run is taken over
    awaited: bool = False  # `start` returns when the code has been read
    stop: Order | None = None  # STOP or KILL: requested from the start


def start(errand: Errand) -> bool:
    """Start a keeper, independent of this process; return False if the run already has one."""
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
        python.hand_over(pickle.dumps(errand), (lock, control), wait=errand.awaited)
    return True


def main() -> None:
    """Detach from the parent, read the errand from stdin, carry it out, and exit; never return."""
    gc.set_threshold(200_000, 20, 20)  # imported modules stay: scanning them took a tenth of the time
    close_others((0, 1, 2))  # somebody may wait for the parent's open descriptors
    with contextlib.suppress(Exception):  # an error recurs where they are required
        from orchestrator.phases import keeper  # noqa: F401 - while the run is planned
        from orchestrator.ssh import connect  # noqa: F401
    with socket.socket(fileno=os.dup(0)) as errands:
        _, descriptors, _, _ = socket.recv_fds(errands, 1, 2)
    if not descriptors or os.fork() > 0:
        os._exit(0)  # the keeper has no parent: no zombie, no controlling terminal
    status = int(ExitStatus.BUG)
    try:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        errand = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - nobody else has that socket
        for descriptor in descriptors:  # the lock, which stays open, and the control
            os.set_inheritable(descriptor, False)
        starter = os.dup(0)  # it may wait until this is closed
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            debug = open_plain(errand.folder.debug_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError:
            debug = os.open(os.devnull, os.O_WRONLY)
        os.dup2(debug, 1)
        os.dup2(debug, 2)
        # A thousand hosts are 3,000 threads. Each that waits for the interpreter's lock wakes up every 5 ms
        # by default; when all hosts reply at once, this took more time than the replies.
        sys.setswitchinterval(0.05)
        processes.allow_files()
        _log_to_stderr()
        # It logs a traceback for every unreachable host, which is reported as an error anyway.
        logging.getLogger("orchestrate.paramiko").setLevel(logging.CRITICAL)
        status = _keep(errand, descriptors[1], starter)
    except Exception as error:
        from orchestrator.phases.context import unforeseen  # imported by now, unless that has failed

        unforeseen("the keeper failed", error)
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
            if (programs := sys.modules.get("orchestrator.processes")) is not None:
                programs.end_all()
        os._exit(status)


def _keep(errand: Errand, control: int, starter: int) -> int:
    """Keep a run to its end; afterwards its events are on disk."""
    from orchestrator.connectors import Connectors
    from orchestrator.fleet import Fleet
    from orchestrator.fleet.containers import Inside
    from orchestrator.phases import keeper
    from orchestrator.phases.context import Run
    from orchestrator.phases.loop import Loop
    from orchestrator.store.bus import Bus, EventLog
    from orchestrator.store.points import PointFile

    loop = Loop()
    patience = timings.read(os.environ)
    log = EventLog(errand.folder)
    try:
        run = Run(
            errand.folder,
            errand.plan,
            Bus(log).emit,
            Fleet(Connectors(errand.logins, Inside(errand.plan.run)), loop.put, patience, loop),
            loop,
            f"{owner()}, pid {os.getpid()}",
            errand.source,
            errand.secrets,
            patience,
            errand.key,
            points=PointFile(errand.folder.points, len(errand.plan.tasks)),
            usage=PointFile(errand.folder.usage, len(errand.plan.hosts)),
            code_read=partial(os.close, starter),
        )
        if errand.stop is not None:
            run.stop.ask(kill=errand.stop is Order.KILL)
        return keeper.keep(run, control, new=errand.new)
    finally:
        log.finish()


def _log_to_stderr() -> None:
    """Log to stderr from now on, including exceptions of threads."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Harmless("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # A full disk must not fill the log with reports that it is full.
    logging.raiseExceptions = False
    threading.excepthook = lambda failed: logging.getLogger("orchestrate").error(
        "%s failed", failed.thread, exc_info=failed.exc_value
    )


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(plain, super().format(record).split("\n")))
