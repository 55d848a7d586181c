"""`clean`: proves that a machine holds nothing of ended runs, and removes what is old.

Ended runs leave states that are not true, and processes. Dry, it changes nothing and tells what it would do.
`workdir` and `state` may lie where a user keeps `data` or `runs` of his own: a folder counts as ours by its
name or by what is in it. Whatever goes is renamed to a hidden name first: nobody sees half of it, and when
several machines that share a folder clean at once, one of them has it.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Iterable

from ..base import locks, procs
from ..base.fault import NodeError
from ..base.lenient import changed, link, listed
from ..base.paths import Paths, TaskFolder, absolute
from ..disk.removing import Folder, measure, remove
from ..serve.agent import Agent, Request
from ..task import state
from .envs import LOCK, MAKING

_LISTED = 20  # of each kind


def look(agent: Agent, _request: Request) -> dict[str, Any]:
    """The runs that are alive here, and all that have a state."""
    return {"alive": sorted(alive(agent.paths)), "known": agent.paths.runs()}


def clean(agent: Agent, request: Request) -> dict[str, Any]:
    """Look, or look and remove, in a child of the agent.

    `alive` are runs that are alive anywhere, as far as the controller can know; `known` those of which some
    machine that was asked holds a state. With `shared` also that goes what other machines may see, since all
    of them were asked; with `work` also what tasks wrote.
    """
    return {**find(agent.paths, bool(request["dry"])), "folders": prune(agent.paths, request)}


def alive(paths: Paths) -> frozenset[str]:
    """The runs with a task that lives here, or with a living keeper."""
    return frozenset(
        run
        for run in paths.runs()
        if locks.is_taken(paths.keeper(run)) or any(map(state.is_locked, paths.tasks(run)))
    )


def find(paths: Paths, dry: bool) -> dict[str, Any]:
    """Settle what is not true, and kill what an ended task left; `dry`: tell it only."""
    trouble = [] if dry else _settle(paths)
    left: list[dict[str, Any]] = []
    killed: list[dict[str, Any]] = []
    for cookie, orphans in _orphans(paths, dry).items():
        try:
            if not dry:
                procs.sweep(cookie, is_meant=_sees_our_files)
            (left if dry else killed).extend(orphans)
        except NodeError as error:
            trouble.append(error.as_dict())
            left += orphans
    return {"orphans": left[:_LISTED], "killed": killed[:_LISTED], "trouble": trouble[:_LISTED]}


def _settle(paths: Paths) -> list[dict[str, str]]:
    """Make the states true of tasks that are said to run and do not; return what could not be ended."""
    trouble: list[dict[str, str]] = []
    for folder in (folder for run in paths.runs() for folder in paths.tasks(run)):
        try:
            state.settle(folder)
        except OSError:
            continue  # removed meanwhile
        except NodeError as error:
            trouble.append(error.as_dict())
    return trouble


def _orphans(paths: Paths, dry: bool) -> dict[str, list[dict[str, Any]]]:
    """Processes of ours whose marks are all of one task of this state folder that is over, by its cookie.

    A cookie alone condemns nobody. Where there is no folder of the task any more it was removed, by hand or
    with age, and nobody can guard what is left. With `dry` a task counts as over whose end is not written
    yet: nobody settles it then.
    """
    orphans: dict[str, list[dict[str, Any]]] = {}
    for process in procs.scan():
        pid = process.pid
        folder = None if process.zombie else _folder_of(paths, procs.marks(pid))
        if folder and procs.is_own(pid) and _sees_our_files(pid) and _is_over(folder, dry=dry):
            about = {"pid": pid, "argv0": procs.argv0(pid), "run": folder.run, "task": folder.task}
            orphans.setdefault(f"{folder.run}/{folder.attempt}/{folder.task}", []).append(about)
    return orphans


def _folder_of(paths: Paths, marks: dict[str, str]) -> TaskFolder | None:
    """The folder of the task that a process says it belongs to; None unless all that it says is of one."""
    cookie = marks.get(procs.COOKIE, "").split("/")
    if len(cookie) != 5:
        return None
    run, attempt, role, index, _ = cookie
    try:
        folder = paths.task(run, attempt, f"{role}-{index}")
    except NodeError:
        return None  # a cookie that is none of ours
    told = [marks.get(f"ORCHESTRATE_{name}") for name in ("RUN", "ATTEMPT", "REPORT")]
    return folder if told == [run, attempt, folder.report] else None


def _is_over(folder: TaskFolder, *, dry: bool) -> bool:
    try:
        return not state.is_locked(folder) and (dry or state.is_final(state.read(folder)))
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _sees_our_files(pid: int) -> bool:
    """Return False for what runs in a container: the folder of its task is elsewhere."""
    return all(link(f"/proc/{pid}/ns/{kind}") == link(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid"))


GONE = ".gone-"  # being removed
_DAY = 24 * 3600.0
# Younger than this (seconds), a launch may be about to use it. A run's state is held by its keeper besides.
_FRESH = {"state": 10.0, "scraps": _DAY}
_OTHERS = 600.0
_SCRAPS = (".incoming-", ".share-", ".orchestrate-", MAKING, GONE)
_DIGEST = re.compile(r"[0-9a-f]{32,64}", re.ASCII)
_OF_A_STATE = frozenset(("attempts", "keeper", "run.json", "stopped"))


def prune(paths: Paths, request: Request) -> dict[str, Any]:
    """Return for each kind of folder how many there are, what went (or would), what could not."""
    living, shared, older = frozenset(request["alive"]) | alive(paths), request["shared"], request["older"]
    workdir, states = absolute(request["workdir"]), os.path.join(paths.root, "runs")
    works, trees, data, envs = (os.path.join(workdir, name) for name in ("runs", "trees", "data", "envs"))
    working = [measure(path) for path in _plain(works, _is_work)]
    # Read before the working folders go; one that was used lately may be of a run that is alive elsewhere.
    in_use = [one for one in working if one.name in living or time.time() - one.used < older]
    needed = {tree for one in in_use for tree in procs.text(os.path.join(one.path, "trees")).split()}

    def is_known(run: Folder) -> bool:
        """Keep unknown runs for a week: they may be alive elsewhere."""
        return run.name in request["known"] or time.time() - run.used >= 7 * _DAY

    hidden = _hidden(states)
    if shared:
        hidden += [path for folder in (workdir, works, trees, data, envs) for path in _hidden(folder)]

    kinds: dict[str, tuple[Iterable[Folder], Callable[[Folder], bool]]] = {
        "state": (map(measure, _plain(states, _is_state)), lambda one: one.name not in living),
        "work": (
            working,
            lambda one: shared and request["work"] and one.name not in living and is_known(one),
        ),
        "code": (map(_by_its_top, _plain(trees, _is_stock)), lambda one: shared and one.name not in needed),
        "data": (map(_by_its_top, _plain(data, _is_stock)), lambda one: shared and one.name not in needed),
        # A run that is alive may use any of them.
        "envs": (map(_by_its_top, _plain(envs, _is_environment)), lambda _: shared and not living),
        "scraps": (map(measure, hidden), lambda _: True),
    }
    return {kind: _prune(kind, folders, request, may_go) for kind, (folders, may_go) in kinds.items()}


def _is_state(path: str) -> bool:
    """Return True for the state of a run that is no working folder too; an empty one is left of a crash."""
    names = set(listed(path))
    return not names or (not names.isdisjoint(_OF_A_STATE) and "work" not in names)


def _is_work(path: str) -> bool:
    """The folder that a run works in is noted with the trees that it was made from."""
    return os.path.isfile(os.path.join(path, "trees")) or not listed(path)


def _is_stock(path: str) -> bool:
    """A tree or data: their name is the digest of what they hold."""
    return _DIGEST.fullmatch(os.path.basename(path)) is not None


def _is_environment(path: str) -> bool:
    return os.path.isfile(os.path.join(path, LOCK))


def _by_its_top(path: str) -> Folder:
    """The files of a tree have the times of their sources: whoever uses one touches its top."""
    return measure(path)._replace(used=changed(path, time.time()))


def _prune(
    kind: str, folders: Iterable[Folder], request: Request, may_go: Callable[[Folder], bool]
) -> dict[str, Any]:
    """Remove the old ones that may go, the oldest first."""
    ordered = sorted(folders, key=lambda folder: folder.used)
    older = _DAY if kind == "scraps" else max(request["older"], _FRESH.get(kind, _OTHERS))
    gone: list[dict[str, Any]] = []
    failed: list[str] = []
    for folder in ordered:
        if time.time() - folder.used < older or not may_go(folder):
            continue
        if not request["dry"]:
            try:
                if not _unused(folder):
                    continue  # somebody has just begun to use it, or was faster
            except OSError as error:
                failed.append(f"{error.filename or folder.path}: {error.strerror}")
                continue
        gone.append({"name": folder.name, "bytes": folder.size})
    total = sum(folder.size for folder in ordered)
    return {"count": len(ordered), "bytes": total, "gone": gone, "failed": failed}


def _unused(folder: Folder) -> bool:
    """Remove it, unless it was used since we looked: whoever uses a tree touches it first."""
    parent, name = os.path.split(folder.path)
    hidden = os.path.join(parent, f"{GONE}{name.lstrip('.')}-{os.urandom(4).hex()}")
    try:
        os.rename(folder.path, hidden)
    except FileNotFoundError:
        return False
    if changed(hidden, time.time()) > folder.used:
        try:
            os.rename(hidden, folder.path)
            return False
        except OSError:
            pass  # it was made again meanwhile
    error = remove(hidden)
    if error is not None:
        raise error
    return True


def _plain(folder: str, is_ours: Callable[[str], bool] = os.path.lexists) -> list[str]:
    return [path for path in _entries(folder) if not os.path.basename(path).startswith(".") and is_ours(path)]


def _hidden(folder: str) -> list[str]:
    return [path for path in _entries(folder) if os.path.basename(path).startswith(_SCRAPS)]


def _entries(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in sorted(listed(folder))]
