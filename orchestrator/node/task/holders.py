"""Guards and supervisors, found by the lock of their task that they hold open, and set going again.

Somebody may have stopped them (SIGSTOP, a debugger): then they hear no request, and hold the lock.
"""

from __future__ import annotations

import os
import signal

from ..base import ending, procs
from ..base.annotations import Iterable, Iterator
from ..base.paths import TaskFolder
from ..base.procs import Process
from ..base.tuples import NamedTuple

NAMES = {"orch-guard": "guard", "orch-supervisor": "supervisor"}
_STOPPED, _TRACED = "T", "t"


class Holder(NamedTuple):
    """One of our two processes of a task."""

    task: str
    what: str  # guard or supervisor
    process: Process
    status: str  # as /proc/*/stat has it


def wake(folders: Iterable[TaskFolder], *, kill: bool = False) -> list[dict[str, object]]:
    """Let stopped guards and supervisors go on; return who they were.

    What a debugger holds cannot: with `kill` it is killed, and the other one of the two ends the task.
    """
    woken: list[dict[str, object]] = []
    for holder in _holders({os.path.realpath(folder.lock): folder for folder in folders}):
        if holder.status == _TRACED:
            sent = kill and ending.try_to_send(holder.process, signal.SIGKILL)
        else:  # to one that runs, too: it takes back a stop that has not been heard yet (signal(7))
            sent = ending.try_to_send(holder.process, signal.SIGCONT)
            if holder.status != _STOPPED:
                continue
        woken.append(
            {
                "task": holder.task,
                "process": holder.what,
                "pid": holder.process.pid,
                "traced": holder.status == _TRACED,
                "sent": sent,
            }
        )
    return woken


def _holders(locks: dict[str, TaskFolder]) -> Iterator[Holder]:
    for process in procs.scan():
        what = NAMES.get(procs.name(process.pid))
        if what is None or process.zombie:
            continue
        folder = next((locks[path] for _, path in procs.open_files(process.pid) if path in locks), None)
        if folder is not None:
            yield Holder(folder.task, what, process, procs.status(process.pid))
