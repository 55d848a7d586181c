"""Removes the folders of ended runs that are old, or too many; what is used, or not ours, is left alone.

Whatever goes is renamed to a hidden name first: nobody sees half of it, and when several machines
that share a folder clean at once, one of them has it.
"""

from __future__ import annotations

import os
import time

from ..base import locks
from ..base.annotations import Any, Callable, Collection, Iterable
from ..base.lenient import changed, listed
from ..base.paths import Paths
from ..base.tuples import NamedTuple
from ..disk.measuring import Folder, measure
from ..disk.removing import remove
from ..hook import site
from ..stock import wheelhouse, work
from ..stock.envs import MAKING
from . import ours

GONE = ".gone-"  # being removed
_LOCK = ".lock-"
_DAY = 24 * 3600.0
# Younger than this (seconds), a launch may be about to use it. A run's state is held by its keeper besides.
_FRESH = {"state": 10.0, "work": 600.0, "code": 600.0, "data": 600.0, "envs": 600.0, "scraps": _DAY}
_SCRAPS = (".incoming-", ".share-", ".orchestrate-", GONE)
_HALF_ENVS = (MAKING, ".wheels-", GONE)


class Rules(NamedTuple):
    """What may go. `alive` are runs that are alive anywhere, as far as the controller can know."""

    alive: frozenset[str]
    known: frozenset[str]  # runs of which some machine that was asked holds a state
    older: float  # seconds
    keep_bytes: int | None  # of each kind of folder: the oldest go until the rest fits
    shared: bool  # also code and scraps in the working folder, which other machines may see
    work: bool  # also working folders: what tasks wrote is in them
    envs: frozenset[str] | None  # environments that stay while others go; None: all stay
    dry: bool

    def is_over(self, folder: Folder) -> bool:
        return _name(folder) not in self.alive

    def is_left(self, folder: Folder) -> bool:
        """Of a run that nobody knows, which may go on where nobody was asked, a week must have passed."""
        known = _name(folder) in self.known
        return self.is_over(folder) and (known or time.time() - folder.used >= 7 * _DAY)


def prune(paths: Paths, workdir: str, rules: Rules) -> dict[str, Any]:
    """By kind of folder: how many there are, what went (or would), what could not."""
    runs = os.path.join(paths.root, "runs")
    works, trees, data, envs = (os.path.join(workdir, name) for name in ("runs", "trees", "data", "envs"))
    working = [measure(path) for path in _plain(works, ours.is_work)]
    wanted = _wanted(working, rules, time.time())  # before the working folders go
    shared: tuple[str, ...] = ()
    if rules.shared:
        hidden = (*_hidden(workdir), *_hidden(trees), *_hidden(data), *_hidden(envs, _HALF_ENVS))
        shared = (*hidden, *_half_made(works))
        if not rules.dry:
            for folder in (trees, data, envs):
                _forget_locks(folder)
    scraps = [*_hidden(runs), *shared, *_other_sites(paths, rules)]
    wheels = wheelhouse.noted(envs)
    environments = _prune(
        "envs",
        map(_by_its_top, _plain(envs, ours.is_environment)),
        rules._replace(older=0.0, keep_bytes=None),
        _is_unnamed(rules),
    )
    gone = {one["name"] for one in environments["gone"]}
    unneeded = set(wheels.values()) - {digest for name, digest in wheels.items() if name not in gone}
    return {
        "state": _prune("state", map(measure, _plain(runs, ours.is_state)), rules, rules.is_over, _locked),
        "work": _prune(
            "work",
            working,
            rules._replace(keep_bytes=None),  # no checkpoint goes to make room, only with age
            rules.is_left if rules.work and rules.shared else _never,
        ),
        **{
            kind: _prune(
                kind,
                map(_by_its_top, _plain(folder, ours.is_stock)),
                rules,
                (lambda folder: _name(folder) not in wanted) if rules.shared else _never,
                unneeded=unneeded if kind == "data" else (),
            )
            for kind, folder in (("code", trees), ("data", data))
        },
        "envs": environments,
        "scraps": _prune("scraps", map(measure, scraps), rules._replace(older=_DAY, keep_bytes=None)),
    }


def _by_its_top(path: str) -> Folder:
    """The files of a tree have the times of their sources: whoever uses one touches its top."""
    return measure(path)._replace(used=changed(path, time.time()))


def _other_sites(paths: Paths, rules: Rules) -> list[str]:
    """What other versions of us put before tasks' Pythons; a run that is alive may be one of theirs."""
    own = paths.site(site.version())
    sites = os.path.dirname(own)
    return [] if rules.alive else [*_hidden(sites), *(one for one in _plain(sites) if one != own)]


def _is_unnamed(rules: Rules) -> Callable[[Folder], bool]:
    """Which environment a run that is alive uses is not known on every machine that sees the folder."""
    keep = rules.envs
    if keep is None or rules.alive or not rules.shared:
        return _never
    return lambda folder: _name(folder) not in keep and not _is_used(folder.path)


def _is_used(path: str) -> bool:
    """Whether a process of this machine, none of our runs perhaps, has a file of it in its memory."""
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


def _forget_locks(folder: str) -> None:
    """The empty files whose locks nobody needs: what they guard is not there, and nobody makes it."""
    for name in listed(folder):
        path = os.path.join(folder, name)
        guarded = name[len(_LOCK) :]
        if not name.startswith(_LOCK) or any(guarded in one for one in listed(folder) if one != name):
            continue
        try:
            locks.remove_free(path)
        except OSError:
            continue  # somebody was faster, or it is not ours


def _never(_: Folder) -> bool:
    return False


def _name(folder: Folder) -> str:
    return os.path.basename(folder.path)


def _prune(
    kind: str,
    found: Iterable[Folder],
    rules: Rules,
    may_go: Callable[[Folder], bool] = lambda _: True,
    take_away: Callable[[Folder], bool] | None = None,
    *,
    unneeded: Collection[str] = (),
) -> dict[str, Any]:
    """The oldest first: those that are too old, those that are too much, and the unneeded of any age."""
    folders = sorted(found, key=lambda folder: folder.used)
    total = left = sum(folder.size for folder in folders)
    gone: list[dict[str, Any]] = []
    failed: list[str] = []
    for folder in folders:
        idle = time.time() - folder.used
        too_much = rules.keep_bytes is not None and left > rules.keep_bytes
        is_old = idle >= rules.older or _name(folder) in unneeded
        if idle < _FRESH[kind] or not (is_old or too_much) or not may_go(folder):
            continue
        if not rules.dry:
            try:
                if not (take_away or _unused)(folder):
                    continue  # somebody has just begun to use it, or was faster
            except OSError as error:
                failed.append(f"{error.filename or folder.path}: {error.strerror}")
                continue
        left -= folder.size
        gone.append({"name": _name(folder), "bytes": folder.size, "idle": idle})
    return {"count": len(folders), "bytes": total, "gone": gone, "failed": failed}


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


def _wanted(working: Iterable[Folder], rules: Rules, now: float) -> set[str]:
    """The trees of runs that are alive somewhere, or may be on machines that were not asked."""
    wanted: set[str] = set()
    for folder in working:
        run = _name(folder)
        elsewhere = run not in rules.known and now - folder.used < rules.older
        if run in rules.alive or elsewhere:
            wanted.update(work.trees_of(folder.path))
    return wanted


def _plain(folder: str, is_ours: Callable[[str], bool] = os.path.lexists) -> list[str]:
    found = (path for path in _entries(folder) if not os.path.basename(path).startswith("."))
    return [path for path in found if is_ours(path)]


def _hidden(folder: str, beginnings: tuple[str, ...] = _SCRAPS) -> list[str]:
    return [path for path in _entries(folder) if os.path.basename(path).startswith(beginnings)]


def _half_made(runs: str) -> list[str]:
    """Copies that were being made when their maker was killed."""
    found = [path for run in _plain(runs) for path in _entries(run)]
    return [*_hidden(runs), *filter(ours.is_half_made, found)]


def _entries(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in sorted(listed(folder))]
