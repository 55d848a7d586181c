"""Where the tasks of a run stand: their processes as the kernel sees them, and their Python stacks."""

from __future__ import annotations

import os
import time
from typing import Any

from ..base import lenient, procs
from ..base.paths import TaskFolder
from ..serve.agent import Agent, Request
from ..task import control, state
from . import dumps

_SECONDS = 20.0  # for all tasks of a machine; whoever comes too late is told so
_MOST = 16  # Python processes of one task: a pool of data loaders may have hundreds


def stacks(agent: Agent, request: Request) -> dict[str, Any]:
    """The living tasks of a run (of one attempt, of some tasks), each with its processes."""
    tasks: list[str] | None = request.get("tasks")
    folders = [
        folder
        for folder in agent.paths.tasks(request["run"], request.get("attempt"))
        if (tasks is None or folder.task in tasks) and control.is_locked(folder)
    ]
    deadline = time.monotonic() + _SECONDS
    return {"tasks": [_task(folder, deadline) for folder in folders]}


def _task(folder: TaskFolder, deadline: float) -> dict[str, Any]:
    leader = state.read(folder)["pid"]
    found = procs.bearers(f"{folder.run}/{folder.attempt}/{folder.task}")
    pythons = sorted(
        (process for process in found if is_python(process.pid, folder)),
        key=lambda process: (process.pid != leader, process.start_ticks, process.pid),
    )
    others = [process for process in found if process not in pythons]
    return {
        "attempt": folder.attempt,
        "task": folder.task,
        "processes": [_shown(process, folder, deadline) for process in pythons[:_MOST]]
        + [_facts(process) for process in others[:_MOST]],
        "more": max(0, len(pythons) - _MOST) + max(0, len(others) - _MOST),
    }


def is_python(pid: int, folder: TaskFolder) -> bool:
    """Tell Python by a process's program, or by what it holds open: Python may live in R."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
    return program.startswith(("python", "pypy")) or dumps.held(pid, folder.stacks) is not None


def _shown(process: procs.Process, folder: TaskFolder, deadline: float) -> dict[str, Any]:
    facts = _facts(process)
    seconds = min(dumps.PATIENCE, deadline - time.monotonic())
    if seconds <= 0:
        return {**facts, "python": True, "why": "the other processes took all the time"}
    path = procs.variable(process.pid, b"PATH") or os.environb.get(b"PATH", b"")
    how, text, why = dumps.take(process, path, folder.stacks, seconds)
    return {**facts, "python": True, "how": how, "text": text, "why": why}


def _facts(process: procs.Process) -> dict[str, Any]:
    """Return what every process shows, be it Python or not."""
    pid = process.pid
    fields = procs.stat(pid)
    ticks = sum(int(field) for field in fields[11:13])
    return {
        "pid": pid,
        "argv0": procs.argv0(pid),
        "python": False,
        "state": fields[0].decode() if fields else "",
        "waits": procs.read(f"/proc/{pid}/wchan", 256).decode("ascii", "replace").strip("0"),
        "cpu": ticks / os.sysconf("SC_CLK_TCK"),
        "cwd": lenient.link(f"/proc/{pid}/cwd"),
        "how": "none",
        "text": "",
        "why": "",
    }
