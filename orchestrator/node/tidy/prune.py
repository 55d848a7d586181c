"""Removes the folders of ended runs that are old; what is used, or not ours, is left alone.

`workdir` and `state` may lie where a user keeps `data` or `runs` of his own: a folder counts as ours by its
name or by what is in it. Whatever goes is renamed to a hidden name first: nobody sees half of it, and when
several machines that share a folder clean at once, one of them has it.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Iterable, NamedTuple

from ..base import locks
from ..base.lenient import changed, listed
from ..base.paths import Paths
from ..disk.measuring import Folder, measure
from ..disk.removing import remove
from ..stock import work
from ..stock.envs import LOCK, MAKING

GONE = ".gone-"  # being removed
_DAY = 24 * 3600.0
# Younger than this (seconds), a launch may be about to use it. A run's state is held by its keeper besides.
_FRESH = {"state": 10.0, "scraps": _DAY}
_OTHERS = 600.0
_SCRAPS = (".incoming-", ".share-", ".orchestrate-", MAKING, GONE)
_DIGEST = re.compile(r"[0-9a-f]{32,64}", re.ASCII)
_HALF_MADE = re.compile(r"work\..+\.[0-9a-f]{12}", re.ASCII)  # a copy of a tree that a run was to work in
_OF_A_STATE = frozenset(("attempts", "keeper", "run.json", "stopped"))


class Rules(NamedTuple):
    """Rules of what may go. `alive` are runs that are alive anywhere, as far as the controller can know."""

    alive: frozenset[str]
    known: frozenset[str]  # runs of which some machine that was asked holds a state
    older: float  # seconds
    shared: bool  # also what other machines may see, since all of them were asked
    work: bool  # also working folders: what tasks wrote is in them
    dry: bool


def prune(paths: Paths, workdir: str, rules: Rules) -> dict[str, Any]:
    """Return for each kind of folder how many there are, what went (or would), what could not."""
    states = os.path.join(paths.root, "runs")
    works, trees, data, envs = (os.path.join(workdir, name) for name in ("runs", "trees", "data", "envs"))
    working = [measure(path) for path in _plain(works, _is_work)]
    needed = _needed(working, rules, time.time())  # before the working folders go
    hidden = _hidden(states)
    if rules.shared:
        copies = (path for run in _plain(works) for path in _entries(run))
        hidden += [path for path in copies if _HALF_MADE.fullmatch(_base(path))]
        hidden += [path for folder in (workdir, works, trees, data, envs) for path in _hidden(folder)]

    def is_over(folder: Folder) -> bool:
        return _name(folder) not in rules.alive

    def is_unneeded(folder: Folder) -> bool:
        return rules.shared and _name(folder) not in needed

    def is_done_with(folder: Folder) -> bool:
        """Keep unknown runs for a week: they may be alive elsewhere."""
        known = _name(folder) in rules.known or time.time() - folder.used >= 7 * _DAY
        return rules.work and rules.shared and is_over(folder) and known

    def is_unused(folder: Folder) -> bool:
        """Keep environments while a run is alive: it may use any of them."""
        return rules.shared and not rules.alive and not _is_in_use(folder.path)

    stock = [("code", trees), ("data", data)]
    kinds: list[tuple[str, Iterable[Folder], Callable[[Folder], bool]]]
    kinds = [("state", map(measure, _plain(states, _is_state)), is_over), ("work", working, is_done_with)]
    kinds += [(kind, map(_by_its_top, _plain(folder, _is_stock)), is_unneeded) for kind, folder in stock]
    kinds += [("envs", map(_by_its_top, _plain(envs, _is_environment)), is_unused)]
    kinds += [("scraps", map(measure, hidden), lambda _: True)]
    return {kind: _prune(kind, folders, rules, may_go) for kind, folders, may_go in kinds}


def _is_state(path: str) -> bool:
    """Return True for the state of a run that is no working folder too; an empty one is left of a crash."""
    names = set(listed(path))
    return not names or (not names.isdisjoint(_OF_A_STATE) and "work" not in names)


def _is_work(path: str) -> bool:
    """The folder that a run works in is noted with the trees that it was made from."""
    return os.path.isfile(os.path.join(path, "trees")) or not listed(path)


def _is_stock(path: str) -> bool:
    """A tree or data: their name is the digest of what they hold."""
    return _DIGEST.fullmatch(_base(path)) is not None


def _is_environment(path: str) -> bool:
    return os.path.isfile(os.path.join(path, LOCK))


def _is_in_use(path: str) -> bool:
    """Return True where a process of this machine, perhaps none of our runs, has a file of it in memory."""
    inside = os.fsencode(os.path.realpath(path)) + b"/"
    for pid in filter(str.isdigit, listed("/proc")):
        for place in ("cmdline", "maps"):
            try:
                with open(f"/proc/{pid}/{place}", "rb") as file:
                    if inside in file.read():
                        return True
            except OSError:
                continue  # it has ended, or is not ours
    return False


def _by_its_top(path: str) -> Folder:
    """The files of a tree have the times of their sources: whoever uses one touches its top."""
    return measure(path)._replace(used=changed(path, time.time()))


def _base(path: str) -> str:
    return os.path.basename(path)


def _name(folder: Folder) -> str:
    return _base(folder.path)


def _prune(
    kind: str, folders: Iterable[Folder], rules: Rules, may_go: Callable[[Folder], bool]
) -> dict[str, Any]:
    """Remove the old ones that may go, the oldest first."""
    ordered = sorted(folders, key=lambda folder: folder.used)
    older = _DAY if kind == "scraps" else max(rules.older, _FRESH.get(kind, _OTHERS))
    gone: list[dict[str, Any]] = []
    failed: list[str] = []
    for folder in ordered:
        if time.time() - folder.used < older or not may_go(folder):
            continue
        if not rules.dry:
            try:
                if not (_locked if kind == "state" else _unused)(folder):
                    continue  # somebody has just begun to use it, or was faster
            except OSError as error:
                failed.append(f"{error.filename or folder.path}: {error.strerror}")
                continue
        gone.append({"name": _name(folder), "bytes": folder.size})
    total = sum(folder.size for folder in ordered)
    return {"count": len(ordered), "bytes": total, "gone": gone, "failed": failed}


def _locked(folder: Folder) -> bool:
    """Remove a run's state with its keeper's place taken, so that nobody takes it meanwhile."""
    try:
        fd = os.open(os.path.join(folder.path, "keeper"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _unused(folder)
    try:
        return locks.take(fd) and _unused(folder)
    finally:
        os.close(fd)


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


def _needed(working: Iterable[Folder], rules: Rules, now: float) -> set[str]:
    """The trees of runs that are alive somewhere, or may be on machines that were not asked."""
    needed: set[str] = set()
    for folder in working:
        run = _name(folder)
        elsewhere = run not in rules.known and now - folder.used < rules.older
        if run in rules.alive or elsewhere:
            needed.update(work.trees_of(folder.path))
    return needed


def _plain(folder: str, is_ours: Callable[[str], bool] = os.path.lexists) -> list[str]:
    return [path for path in _entries(folder) if not _base(path).startswith(".") and is_ours(path)]


def _hidden(folder: str) -> list[str]:
    return [path for path in _entries(folder) if _base(path).startswith(_SCRAPS)]


def _entries(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in sorted(listed(folder))]
