"""Use that living tasks make of their machine, as the kernel tells it."""

from __future__ import annotations

import os
from typing import Any

from ..base import procs
from ..base.paths import TaskFolder
from ..serve.agent import Agent, Request
from ..task import control, state


def vitals(agent: Agent, request: Request) -> dict[str, Any]:
    """Each living task of an attempt: CPU time, memory, GPUs.

    `closely`: also who has loaded TensorFlow; that takes a moment.
    """
    table = procs.scan()
    gpus = _gpus() if request.get("gpus") else None
    folders = agent.paths.tasks(request["run"], request["attempt"])
    living = [folder for folder in folders if control.is_locked(folder)]
    return {"tasks": [_task(folder, table, gpus, bool(request.get("closely"))) for folder in living]}


def _task(
    folder: TaskFolder, table: list[procs.Process], gpus: list[dict[str, int]] | None, closely: bool
) -> dict[str, Any]:
    leader: int | None = state.read(folder)["pid"]
    above = procs.look(leader) if leader else None
    # All that the task started is below its supervisor, whatever became of the first process.
    processes = procs.descendants(above.ppid, table) if above is not None else []
    pids = [process.pid for process in processes if not process.zombie]
    ticks, anonymous, files, shared = 0, 0, [0], [0]
    for pid in pids:
        ticks += _ticks(pid)
        fields = procs.facts(pid)
        anonymous += _kilobytes(fields, b"RssAnon")
        files.append(_kilobytes(fields, b"RssFile"))
        shared.append(_kilobytes(fields, b"RssShmem"))
    answer: dict[str, Any] = {
        "attempt": folder.attempt,
        "task": folder.task,
        "processes": len(pids),
        "cpu": ticks / os.sysconf("SC_CLK_TCK"),
        # Files and shared memory are counted once: the processes of a task mostly share them.
        "memory": (anonymous + max(files) + max(shared)) << 10,
    }
    if gpus is not None:
        mine = [gpu for gpu in gpus if gpu["pid"] in pids]
        answer["gpu_memory"] = sum(gpu["memory"] for gpu in mine)
        answer["gpu_busy"] = max((gpu["busy"] for gpu in mine), default=0)
    if closely and leader:
        answer["tensorflow"] = b"libtensorflow" in procs.read(f"/proc/{leader}/maps", 1 << 24)
    return answer


def _ticks(pid: int) -> int:
    """CPU time of a process and of the children that it has waited for."""
    return sum(int(field) for field in procs.stat(pid)[11:15])


def _kilobytes(fields: dict[bytes, bytes], name: bytes) -> int:
    first = fields.get(name, b"").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else 0


def _gpus() -> list[dict[str, int]] | None:
    """Which process uses which GPU, how much of its memory (bytes), and how busy that GPU is (percent)."""
    from ..base import program  # it brings `subprocess`

    busy = program.ask_nvidia("--query-gpu=uuid,utilization.gpu")
    users = program.ask_nvidia("--query-compute-apps=gpu_uuid,pid,used_memory")
    if busy is None or users is None:
        return None
    percent = {gpu: int(used) for gpu, used in busy if used.isdigit()}
    return [
        {
            "pid": int(pid),
            "memory": int(memory) << 20 if memory.isdigit() else 0,
            "busy": percent.get(gpu, 0),
        }
        for gpu, pid, memory in users
        if pid.isdigit()
    ]
