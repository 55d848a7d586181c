"""`clean`: verifies that a machine holds nothing of ended runs, and removes old files.

Ended runs leave outdated states, and processes. A dry run changes nothing and reports what would be done.
`workdir` and `state` may be in places where a user keeps `data` or `runs` of their own: a folder counts as
ours by its name or by its content. It is first renamed to a hidden name, so that nobody sees half of it, and
of several machines that clean a shared folder at once, one gets it.
"""

from __future__ import annotations

import os
import re
import time
from typing import Callable, Iterable

from ..base import locks, procs
from ..base.fault import NodeError
from ..base.lenient import changed, link, listed
from ..base.paths import Paths, TaskFolder, absolute
from ..disk.removing import GONE, Folder, hide_and_remove, measure
from ..serve import container
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..task import state
from .envs import LOCK, MAKING

_LISTED = 20  # of each kind


def look(agent: Agent, _request: Request) -> Json:
    """Return the runs that are alive here, and all that have a state."""
    return {"alive": sorted(alive(agent.paths)), "known": agent.paths.runs()}


def clean(agent: Agent, request: Request) -> Json:
    """Inspect, or inspect and remove, in a child of the agent.

    `alive` are runs that are alive anywhere, as far as the controller knows; `known` those of which a
    machine that was asked has a state. With `shared`, what other machines may see is removed too, because
    all of them were asked; with `work` also what tasks wrote.
    """
    from ..task import standby

    paths, dry = agent.paths, bool(request["dry"])
    standbys = len(standby.look(paths)) if dry else standby.end_all(paths)
    processes = find(paths, dry, request["alive"])
    return {**processes, "folders": prune(paths, request), "standbys": standbys}


def alive(paths: Paths) -> frozenset[str]:
    """Return the runs with a task that lives here, or with a living keeper."""

    def lives(run: str) -> bool:
        return locks.is_taken(paths.keeper(run)) or any(map(state.is_locked, paths.tasks(run)))

    return frozenset(filter(lives, paths.runs()))


def find(paths: Paths, dry: bool, elsewhere: Iterable[str] = ()) -> Json:
    """Correct outdated states, and kill what an ended task left; `dry`: only report it."""
    trouble = [] if dry else _settle(paths)
    orphaned: list[Json] = []
    killed: list[Json] = []
    for cookie, orphans in _orphans(paths, dry).items():
        try:
            if not dry:
                procs.sweep(cookie, is_meant=_sees_our_files)
            (orphaned if dry else killed).extend(orphans)
        except NodeError as error:
            trouble.append(error.as_dict())
            orphaned += orphans
    for engine, name, facts in container.leftover(paths.runs(), {*alive(paths), *elsewhere}):
        if not dry:
            container.end(engine, name)
        (orphaned if dry else killed).append(facts)
    return {"orphans": orphaned[:_LISTED], "killed": killed[:_LISTED], "trouble": trouble[:_LISTED]}


def _settle(paths: Paths) -> list[dict[str, str]]:
    """Correct the states of tasks that supposedly run and do not; return what could not be ended."""
    trouble: list[dict[str, str]] = []
    for folder in (folder for run in paths.runs() for folder in paths.tasks(run)):
        try:
            state.settle(folder)
        except OSError:
            continue  # removed meanwhile
        except NodeError as error:
            trouble.append(error.as_dict())
    return trouble


def _orphans(paths: Paths, dry: bool) -> dict[str, list[Json]]:
    """Return our processes whose cookie names a task of this state folder that is over.

    A cookie alone is not enough. If the folder of the task no longer exists, it was removed by hand or
    because of its age, and nobody can guard what is left. With `dry` a task counts as over even if its end
    is not written yet, because nobody corrects that.
    """
    orphans: dict[str, list[Json]] = {}
    for process in procs.scan():
        pid = process.pid
        folder = None if process.zombie else _folder_of(paths, procs.marks(pid))
        if folder and procs.is_own(pid) and _sees_our_files(pid) and _is_over(folder, dry=dry):
            about = {"pid": pid, "argv0": procs.argv0(pid), "run": folder.run, "task": folder.task}
            orphans.setdefault(f"{folder.run}/{folder.attempt}/{folder.task}", []).append(about)
    return orphans


def _folder_of(paths: Paths, marks: dict[str, str]) -> TaskFolder | None:
    """Return the folder of the task that a process belongs to; None unless all its marks agree on one."""
    cookie = marks.get(procs.COOKIE, "").split("/")
    if len(cookie) != 5:
        return None
    run, attempt, role, index, _ = cookie
    try:
        folder = paths.task(run, attempt, f"{role}-{index}")
    except NodeError:
        return None  # a cookie that is not ours
    variables = [marks.get(f"ORCHESTRATE_{name}") for name in ("RUN", "ATTEMPT", "REPORT")]
    return folder if variables == [run, attempt, folder.report] else None


def _is_over(folder: TaskFolder, *, dry: bool) -> bool:
    try:
        return not state.is_locked(folder) and (dry or state.is_final(state.read(folder)))
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _sees_our_files(pid: int) -> bool:
    """Return False for a process in a container: the folder of its task is elsewhere."""
    return all(link(f"/proc/{pid}/ns/{kind}") == link(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid"))


_DAY = 24 * 3600.0
# A launch may be about to use younger ones (seconds). A run's state is also held by its keeper.
_FRESH = {"state": 10.0, "scraps": _DAY}
_OTHERS = 600.0
_SCRAPS = (".incoming-", ".share-", ".orchestrate-", MAKING, GONE)
_DIGEST = re.compile(r"[0-9a-f]{32,64}", re.ASCII)
_OF_A_STATE = frozenset(("attempts", "keeper", "run.json", "stopped"))


def prune(paths: Paths, request: Request) -> Json:
    """Return for each kind of folder how many exist, what was (or would be) removed, what could not."""
    living, shared, older = frozenset(request["alive"]) | alive(paths), request["shared"], request["older"]
    workdir, states = absolute(request["workdir"]), f"{paths.root}/runs"
    works, trees, data, envs = (f"{workdir}/{name}" for name in ("runs", "trees", "data", "envs"))
    # A working folder has a note of the trees that it was made from; a crash leaves an empty one.
    is_work = _plain(works, lambda path: os.path.isfile(f"{path}/trees") or not listed(path))
    working = [measure(path) for path in is_work]

    def in_hands(run: Folder) -> bool:
        """Return True for the folder of a living run, or one in which a living run continues."""
        return not living.isdisjoint((run.name, *procs.text(f"{run.path}/users").split()))

    # Read before the working folders are removed; a recently used one may belong to a run alive elsewhere.
    in_use = [item for item in working if in_hands(item) or time.time() - item.used < older]
    needed = {tree for item in in_use for tree in procs.text(f"{item.path}/trees").split()}

    def is_known(run: Folder) -> bool:
        """Keep unknown runs for a week: they may be alive elsewhere."""
        return run.name in request["known"] or time.time() - run.used >= 7 * _DAY

    environments = _plain(envs, lambda path: os.path.isfile(f"{path}/{LOCK}"))
    hidden = _hidden(states)
    if shared:
        hidden += [path for folder in (workdir, works, trees, data, envs) for path in _hidden(folder)]

    kinds: dict[str, tuple[Iterable[Folder], Callable[[Folder], bool]]] = {
        "state": (map(measure, _plain(states, _is_state)), lambda item: item.name not in living),
        "work": (working, lambda item: shared and request["work"] and not in_hands(item) and is_known(item)),
        "code": (map(_by_its_top, _plain(trees, _is_stock)), lambda item: shared and item.name not in needed),
        "data": (map(_by_its_top, _plain(data, _is_stock)), lambda item: shared and item.name not in needed),
        "envs": (map(_by_its_top, environments), lambda _: shared and not living),  # a living run may use any
        "scraps": (map(measure, hidden), lambda _: True),
    }
    return {kind: _prune(kind, folders, request, may_go) for kind, (folders, may_go) in kinds.items()}


def _is_state(path: str) -> bool:
    """Return True for a run's state that is not a working folder too; a crash leaves an empty one."""
    names = set(listed(path))
    return not names or (not names.isdisjoint(_OF_A_STATE) and "work" not in names)


def _is_stock(path: str) -> bool:
    """Return True for a tree or data: their name is the digest of their content."""
    return _DIGEST.fullmatch(os.path.basename(path)) is not None


def _by_its_top(path: str) -> Folder:
    """Return the last use: files of a tree have the times of their sources, but each use touches its top."""
    return measure(path)._replace(used=changed(path, time.time()))


def _prune(kind: str, folders: Iterable[Folder], request: Request, may_go: Callable[[Folder], bool]) -> Json:
    """Remove the old ones that may be removed, the oldest first."""
    ordered = sorted(folders, key=lambda folder: folder.used)
    older = _DAY if kind == "scraps" else max(request["older"], _FRESH.get(kind, _OTHERS))
    removed: list[Json] = []
    failed: list[str] = []
    for folder in ordered:
        if time.time() - folder.used < older or not may_go(folder):
            continue
        if not request["dry"]:
            try:
                if not _unused(folder):
                    continue  # another process has just begun to use it, or was faster
            except OSError as error:
                failed.append(f"{error.filename or folder.path}: {error.strerror}")
                continue
        removed.append({"name": folder.name, "bytes": folder.size})
    total = sum(folder.size for folder in ordered)
    return {"count": len(ordered), "bytes": total, "gone": removed, "failed": failed}


def _unused(folder: Folder) -> bool:
    """Remove it unless it was used since the check: each use of a tree touches it first."""
    if changed(folder.path, time.time()) > folder.used:
        return False  # one that needs it at this moment finds it missing, and it is sent again
    try:
        error = hide_and_remove(folder.path)
    except FileNotFoundError:
        return False
    if error is not None:
        raise error
    return True


def _plain(folder: str, is_ours: Callable[[str], bool]) -> list[str]:
    return [path for path in _entries(folder) if not os.path.basename(path).startswith(".") and is_ours(path)]


def _hidden(folder: str) -> list[str]:
    return [path for path in _entries(folder) if os.path.basename(path).startswith(_SCRAPS)]


def _entries(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(listed(folder))]
