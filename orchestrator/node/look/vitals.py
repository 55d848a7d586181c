"""Use that living tasks make of their machine, and what TERM would do to them, as the kernel tells it."""

from __future__ import annotations

import os
import signal
from typing import Any

from ..base import procs
from ..base.paths import TaskFolder
from ..serve.agent import Agent, Request
from ..task import control, state

_TERM = 1 << (signal.SIGTERM - 1)  # its bit in the masks of /proc/*/status

_ENDINGS = (".index", ".keras", ".h5", ".hdf5", ".ckpt")  # `.index` ends a checkpoint of TensorFlow
_MOST = 20_000  # entries that are looked at
_DEEPEST = 6
IGNORED, CAUGHT, DEFAULT, UNKNOWN = "ignored", "caught", "default", ""


def vitals(agent: Agent, request: Request) -> dict[str, Any]:
    """Each living task of an attempt: CPU time, memory, GPUs.

    `closely`: also who catches TERM, and what the task has saved last; that takes a moment.
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
        answer["term"] = term(leader)
        answer["tensorflow"] = b"libtensorflow" in procs.read(f"/proc/{leader}/maps", 1 << 24)
        began = state.read(folder).get("started_ns") or 0
        answer["saved"] = newest(f"/proc/{leader}/cwd/", began)
    return answer


def term(pid: int) -> str:
    """Say what TERM does to a process: `default` (it ends), `caught`, `ignored`; "" where that is hidden."""
    sets = procs.signals(pid)
    if not sets.keys() >= {"SigIgn", "SigCgt"}:
        return UNKNOWN
    ignored, caught = sets["SigIgn"], sets["SigCgt"]
    if ignored & _TERM:
        return IGNORED
    return CAUGHT if caught & _TERM else DEFAULT


def _ticks(pid: int) -> int:
    """CPU time of a process and of the children that it has waited for."""
    return sum(int(field) for field in procs.stat(pid)[11:15])


def _kilobytes(fields: dict[bytes, bytes], name: bytes) -> int:
    first = fields.get(name, b"").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else 0


def _gpus() -> list[dict[str, int]] | None:
    """Which process uses which GPU, how much of its memory (bytes), and how busy that GPU is (percent)."""
    from ..base import gpus  # it brings `subprocess`

    busy = gpus.ask("--query-gpu=uuid,utilization.gpu")
    users = gpus.ask("--query-compute-apps=gpu_uuid,pid,used_memory")
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


def newest(folder: str, since_ns: int) -> dict[str, Any] | None:
    """Find the checkpoint that was written last, and not before `since_ns`, by the names that Keras gives.

    None where there is none among the first 20,000 entries; links are not followed.
    """
    best: dict[str, Any] | None = None
    waiting = [("", 0)]
    looked = 0
    while waiting and looked < _MOST:
        below, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, below)) as entries:
                for entry in entries:
                    looked += 1
                    name = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST:
                            waiting.append((f"{name}/", depth + 1))
                    elif entry.name.endswith(_ENDINGS) and entry.is_file(follow_symlinks=False):
                        when = entry.stat(follow_symlinks=False).st_mtime_ns
                        if when >= since_ns and (best is None or when > best["time_ns"]):
                            best = {"path": os.fsencode(name).decode("utf-8", "replace"), "time_ns": when}
                    if looked >= _MOST:
                        break
        except OSError:
            continue  # removed meanwhile, or not ours to see
    return best
