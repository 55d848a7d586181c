"""Where the tasks of a run are, and what they use: processes as the kernel shows them, and Python stacks.

A process is asked by a signal, and writes its stacks in faulthandler's format: innermost frame first, the
main thread last.
"""

from __future__ import annotations

import os
import time

from ..base import lenient, locks, procs
from ..base.fault import reason
from ..base.paths import TaskFolder
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..task import state
from ..task.environ import SIGNAL

_SECONDS = 20.0  # for all tasks of a machine; later ones are marked as too late
_PATIENCE = 3.0  # seconds that one process has to respond
_STEADY = 0.02  # seconds without another byte after which a dump is complete
_MOST = 16  # Python processes of one task: a pool of data loaders may have hundreds
_LIMIT = 1 << 20  # bytes of one dump
_BIT = 1 << (SIGNAL - 1)


def stacks(agent: Agent, request: Request) -> Json:
    """Return the living tasks of a run (of one attempt), each with its processes."""
    of_run = agent.paths.tasks(request["run"], request.get("attempt"))
    folders = [folder for folder in of_run if state.is_locked(folder)]
    deadline = time.monotonic() + _SECONDS
    return {"tasks": [_task(folder, deadline) for folder in folders]}


def _task(folder: TaskFolder, deadline: float) -> Json:
    leader = state.read(folder)["pid"]
    processes = procs.bearers(f"{folder.run}/{folder.attempt}/{folder.task}")
    pythons = sorted(
        (process for process in processes if _is_python(process.pid, folder)),
        key=lambda process: (process.pid != leader, process.start_ticks, process.pid),
    )
    others = [process for process in processes if process not in pythons]
    shown = [_shown(process, folder, deadline) for process in pythons[:_MOST]]
    return {
        "attempt": folder.attempt,
        "task": folder.task,
        "processes": shown + [_facts(process.pid) for process in others[:_MOST]],
        "more": max(0, len(pythons) - _MOST) + max(0, len(others) - _MOST),
    }


def _is_python(pid: int, folder: TaskFolder) -> bool:
    """Detect Python by a process's program, or by its open files: Python may run inside R."""
    program = os.path.basename(lenient.link(f"/proc/{pid}/exe"))
    return program.startswith(("python", "pypy")) or _dump_file(pid, folder) is not None


def _shown(process: procs.Process, folder: TaskFolder, deadline: float) -> Json:
    seconds = min(_PATIENCE, deadline - time.monotonic())
    text, why = "", "the other processes used up the time"
    if seconds > 0:
        text, why = _ask(process, folder, seconds)
    return {**_facts(process.pid), "python": True, "text": text, "why": why}


def _facts(pid: int) -> Json:
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
        "text": "",
        "why": "",
    }


def _ask(process: procs.Process, folder: TaskFolder, seconds: float) -> tuple[str, str]:
    """Return (text, "") or ("", reason). Nothing is sent unless the process itself has prepared for it."""
    place = _dump_file(process.pid, folder)
    if place is None:
        return "", "it has not prepared for the signal"
    signals = procs.signals(process.pid)
    if procs.status(process.pid) in ("T", "t"):
        return "", "it is stopped, and answers no signal"
    if not signals.get("SigCgt", 0) & _BIT:
        return "", f"it no longer handles signal {SIGNAL}"
    if (signals.get("ShdPnd", 0) | signals.get("SigPnd", 0)) & _BIT:
        return "", "it has not answered the previous request yet"
    deadline = time.monotonic() + seconds
    try:
        fd = os.open(place, os.O_RDWR)
    except OSError as error:
        return "", reason(error)
    try:
        if not locks.take(fd, seconds):
            return "", "another request is collecting its stacks"
        os.ftruncate(fd, 0)
        if not procs.send(process, SIGNAL):
            return "", "it has ended"
        return _answer(fd, process.pid, deadline)
    finally:
        os.close(fd)


def _dump_file(pid: int, folder: TaskFolder) -> str | None:
    """Return the path under /proc of the dump file that a process holds open, if it does.

    A forked child holds its parent's, and its handler too.
    """
    for path, link in procs.open_files(pid):
        if link.startswith(folder.stacks + ".") and link.endswith(" (deleted)"):
            return path
    return None


def _answer(fd: int, pid: int, deadline: float) -> tuple[str, str]:
    """Wait for a dump to be complete: while it is written, its thread blocks the signal."""
    size, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        now = os.fstat(fd).st_size
        if now != size:
            size, since = now, time.monotonic()
        if size and time.monotonic() - since > _STEADY and not procs.signals(pid).get("SigBlk", 0) & _BIT:
            break
        time.sleep(0.005)
    if not size:
        return "", f"it did not answer signal {SIGNAL} within {_PATIENCE:g} s"
    return os.pread(fd, _LIMIT, 0).decode("utf-8", "replace"), ""


def vitals(agent: Agent, request: Request) -> Json:
    """Return for each living task of an attempt: CPU time, memory, GPUs."""
    table = procs.scan()
    gpus = _gpus()
    folders = agent.paths.tasks(request["run"], request["attempt"])
    living = [folder for folder in folders if state.is_locked(folder)]
    return {"tasks": [_use(folder, table, gpus) for folder in living]}


def _use(folder: TaskFolder, table: list[procs.Process], gpus: list[tuple[int, int, int]] | None) -> Json:
    leader: int | None = state.read(folder)["pid"]
    above = procs.look(leader) if leader else None
    # Everything that the task started is below its supervisor, whatever became of the first process.
    processes = procs.descendants(above.ppid, table) if above is not None else []
    pids = [process.pid for process in processes if not process.zombie]
    ticks, anonymous, files, shared = 0, 0, [0], [0]
    for pid in pids:
        ticks += sum(map(int, procs.stat(pid)[11:15]))  # with those of children that it has waited for
        fields = procs.facts(pid)
        anonymous += _kilobytes(fields, b"RssAnon")
        files.append(_kilobytes(fields, b"RssFile"))
        shared.append(_kilobytes(fields, b"RssShmem"))
    answer: Json = {
        "attempt": folder.attempt,
        "task": folder.task,
        "cpu": ticks / os.sysconf("SC_CLK_TCK"),
        # Files and shared memory are counted once: the processes of a task mostly share them.
        "memory": (anonymous + max(files) + max(shared)) << 10,
    }
    if gpus is not None:
        answer["gpu_memory"] = sum(used for pid, used, _ in gpus if pid in pids)
        answer["gpu_busy"] = max((busy for pid, _, busy in gpus if pid in pids), default=0)
    return answer


def _kilobytes(fields: dict[bytes, bytes], name: bytes) -> int:
    first = fields.get(name, b"").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else 0


def _gpus() -> list[tuple[int, int, int]] | None:
    """Return (pid, bytes, percent) of each process on a GPU and the GPU's load; None without a reply."""
    from ..base import program  # it imports `subprocess`

    busy, _ = program.ask_nvidia("--query-gpu=uuid,utilization.gpu")
    if not busy:
        return None
    users, _ = program.ask_nvidia("--query-compute-apps=gpu_uuid,pid,used_memory")
    percent = {gpu: int(used) for gpu, used in busy if used.isdigit()}
    sizes = ((gpu, pid, int(mib) << 20 if mib.isdigit() else 0) for gpu, pid, mib in users)
    return [(int(pid), used, percent.get(gpu, 0)) for gpu, pid, used in sizes if pid.isdigit()]
