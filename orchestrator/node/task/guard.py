"""Waits for the supervisor. When that is gone before its time, ends what it left and says so."""

from __future__ import annotations

import os
import signal
import time

from ..base import prctl
from . import leader, reaper, state, supervisor
from .environ import Handles, Launch
from .oom import Memory
from .output import Output


def main(launch: Launch, handles: Handles) -> None:
    """The guard's life after its fork (all signals blocked, for good); ends the process."""
    try:
        prctl.set_name("orch-guard")
        prctl.adopt_orphans()
        guard = os.getpid()
        memory = Memory()
        try:
            child = os.fork()
        except OSError as error:
            leader.answer(handles.answer, {"error": cannot_fork(launch, error)})
            return
        if child == 0:
            supervisor.main(launch, handles, guard)
        for fd in (handles.control, handles.log_write, handles.answer):
            os.close(fd)
        status = _wait_for(child)
        if status != 0:
            _end_all()
            _bury(launch, handles, status, memory)
    except BaseException:
        supervisor.record_crash(launch)
    finally:
        os._exit(0)


def cannot_fork(launch: Launch, error: OSError) -> dict[str, str]:
    """Conclude a task for which no process can be made; return the error."""
    refusal = leader.cannot_fork(error)
    found = state.read(launch.folder)
    final = state.ended(found, state.UNSTARTED, time.time_ns(), leader.in_one_line(refusal))
    state.conclude(launch.folder, final)
    return refusal


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _end_all() -> None:
    """Kill until there is no child left, which proves that there is no descendant left."""
    pause = 0.001
    while reaper.reap()[1]:
        reaper.signal_all(signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], pause)
        pause = min(pause * 2, 0.2)


def _bury(launch: Launch, handles: Handles, status: int, memory: Memory) -> None:
    found = {**state.read(launch.folder), "oom": memory.kills()}
    Output(launch, handles.log_read, found["gaps"]).drain()
    if not state.is_final(found):
        final = state.ended(found, state.LOST, time.time_ns(), _why(status))
        state.conclude(launch.folder, final)


def _why(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its supervisor was killed by signal {os.WTERMSIG(status)}, and the task was ended with it"
    return "its supervisor failed: a bug in orchestrate, described in crash.txt beside the log"
