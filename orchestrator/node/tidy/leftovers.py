"""`clean`: proves that a machine holds nothing of ended runs, and has what is old removed.

Ended runs leave states that are not true, and processes. Dry, it changes nothing and tells what it would do.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Iterator, NamedTuple

from ..base import ending, locks, procs
from ..base.fault import NodeError
from ..base.paths import Paths, TaskFolder, absolute
from ..serve.agent import Agent, Request
from ..task import control, state
from .prune import Rules, prune

_LISTED = 20  # of each kind


class Orphan(NamedTuple):
    """A process that an ended task has left."""

    process: procs.Process
    argv0: str
    run: str
    task: str
    cookie: str  # of all processes of that task

    def told(self) -> dict[str, Any]:
        return {"pid": self.process.pid, "argv0": self.argv0, "run": self.run, "task": self.task}


def look(agent: Agent, _request: Request) -> dict[str, Any]:
    """The runs that are alive here, and all that have a state."""
    return {"alive": sorted(alive(agent.paths)), "known": agent.paths.runs()}


def clean(agent: Agent, request: Request) -> dict[str, Any]:
    """Look, or look and remove, in a child of the agent."""
    paths = agent.paths
    rules = Rules(
        alive=frozenset(request["alive"]) | alive(paths),
        known=frozenset(request["known"]),
        older=float(request["older"]),
        shared=bool(request["shared"]),
        work=bool(request["work"]),
        dry=bool(request["dry"]),
    )
    return {**find(paths, rules.dry), "folders": prune(paths, absolute(request["workdir"]), rules)}


def alive(paths: Paths) -> frozenset[str]:
    """The runs with a task that lives here, or with a keeper."""
    return frozenset(
        run
        for run in paths.runs()
        if is_kept(paths, run) or any(control.is_locked(folder) for folder in paths.tasks(run))
    )


def is_kept(paths: Paths, run: str) -> bool:
    """Return True while the agent of a living keeper holds the run."""
    return locks.is_taken(paths.keeper(run))


def find(paths: Paths, dry: bool) -> dict[str, Any]:
    """Settle what is not true, kill what an ended task left, and look again; `dry`: tell it only."""
    trouble = [] if dry else _settle(paths)
    orphans = _orphans(paths, dry=dry)
    killed: list[Orphan] = []
    if not dry:
        for cookie in sorted({orphan.cookie for orphan in orphans}):
            try:
                ending.end_all(functools.partial(_left_of, paths, cookie), cookie)
            except NodeError as error:
                trouble.append(error.as_dict())
        left = {orphan.process.pid for orphan in _orphans(paths)}
        killed = [orphan for orphan in orphans if orphan.process.pid not in left]
        orphans = [orphan for orphan in orphans if orphan.process.pid in left]
    return {
        "orphans": [orphan.told() for orphan in orphans[:_LISTED]],
        "killed": [orphan.told() for orphan in killed[:_LISTED]],
        "trouble": trouble[:_LISTED],
    }


def _settle(paths: Paths) -> list[dict[str, str]]:
    """Make the states true of tasks that are said to run and do not; return what could not be ended."""
    trouble: list[dict[str, str]] = []
    for folder in (folder for run in paths.runs() for folder in paths.tasks(run)):
        try:
            control.settle(folder)
        except (OSError, control.UnknownTaskError):
            continue  # removed meanwhile
        except NodeError as error:
            trouble.append(error.as_dict())
    return trouble


def _orphans(paths: Paths, table: list[procs.Process] | None = None, *, dry: bool = False) -> list[Orphan]:
    """Processes of ours with the cookie of a task that is over; a cookie alone condemns nobody.

    The rest has to fit as well: we own the process, no guard or supervisor of ours is above it, all its
    marks are of one task, and that task is over by the lock in its own state folder, on this machine or
    another's, and began before the process. Where there is no such folder any more it was removed, by
    hand or with age, and nobody can guard what is left; but only a process that sees our file system can
    tell that, and not one in a container, whose folder is elsewhere. With `dry` a task counts as over whose
    end is not written yet: nobody settles it then.
    """
    table = procs.scan() if table is None else table
    parents = {process.pid: process.ppid for process in table}
    found = []
    for process in table:
        marks = {} if process.zombie else procs.marks(process.pid)
        folder = _folder_of(paths, marks)
        if folder is None or not procs.is_own(process.pid) or _guarded(process.pid, parents):
            continue
        if _is_over(folder, process, dry=dry):
            cookie = f"{folder.run}/{folder.attempt}/{folder.task}"
            found.append(Orphan(process, procs.argv0(process.pid), folder.run, folder.task, cookie))
    return found


def _left_of(paths: Paths, cookie: str) -> list[procs.Process]:
    table = procs.scan()
    first = [orphan.process for orphan in _orphans(paths, table) if orphan.cookie == cookie]
    return procs.with_descendants(first, table)


def _folder_of(paths: Paths, marks: dict[str, str]) -> TaskFolder | None:
    """The folder of the task that a process says it belongs to, in whatever state folder that is.

    None unless all that it says is of one task.
    """
    cookie = marks.get(procs.COOKIE, "").split("/")
    if len(cookie) != 5:
        return None
    run, attempt, role, index, _ = cookie
    try:
        known = paths.task(run, attempt, f"{role}-{index}")
    except NodeError:
        return None  # a cookie that is none of ours
    report = marks.get("ORCHESTRATE_REPORT", "")
    end = os.path.relpath(known.report, paths.root)
    agree = marks.get("ORCHESTRATE_RUN") == run and marks.get("ORCHESTRATE_ATTEMPT") == attempt
    if not agree or not report.startswith("/") or not report.endswith(f"/{end}"):
        return None
    return known._replace(path=os.path.dirname(report))


def _is_over(folder: TaskFolder, process: procs.Process, *, dry: bool) -> bool:
    """Return True where the task is over, and the process began in its time."""
    try:
        if control.is_locked(folder):
            return False
        known = state.read(folder)
    except FileNotFoundError:
        return _sees_our_files(process.pid)
    except OSError:
        return False  # of a state folder that we may not see
    settled = dry or state.is_final(known)
    if not settled or known["incarnation"] != procs.incarnation():
        return False  # to be settled first; or a later life of the machine
    return known["start_ticks"] is None or process.start_ticks >= known["start_ticks"]


def _sees_our_files(pid: int) -> bool:
    try:
        return all(
            os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
            for kind in ("mnt", "pid")
        )
    except OSError:
        return False


def _guarded(pid: int, parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        if procs.name(pid) in control.NAMES:
            return True
        seen.add(pid)
        pid = parents.get(pid, 0)
    return False


def gpu_held(agent: Agent, request: Request) -> dict[str, Any]:
    """List the processes of a run's ended tasks that still hold memory of a GPU.

    The driver frees the memory of a killed process a moment after the process is gone, and lists it until
    then. Other pids that do not exist here may be those of another container.
    """
    held = _holders() or []
    pids = set(_leaders(agent.paths, request["run"])) if held else set()
    return {"held": [one for one in held if one["run"] == request["run"] or one["pid"] in pids]}


def _leaders(paths: Paths, run: str) -> Iterator[int | None]:
    """The first processes of a run's tasks."""
    for folder in paths.tasks(run):
        try:
            yield state.read(folder)["pid"]
        except FileNotFoundError:
            continue  # removed meanwhile


def _holders() -> list[dict[str, Any]] | None:
    from ..base import program  # it brings `subprocess`

    rows = program.ask_nvidia("--query-compute-apps=pid,used_memory,process_name", program.AWAKE)
    if rows is None:
        return None
    return [
        {
            "pid": int(pid),
            "name": name,
            "memory": int(memory) << 20 if memory.isdigit() else None,
            "run": procs.marks(int(pid)).get(procs.COOKIE, "").split("/")[0],
        }
        for pid, memory, name in rows
        if pid.isdigit()
    ]
