"""Large files of trees, lent to the runs that work with them: one file with two names instead of a copy.

    <workdir>/trees/.large-<digest>   the large files of a tree, as they were when it was sealed
    <workdir>/trees/.written          contents that a task has written to: copied from then on

A file that can be cloned is not lent. A task may write to what it was lent, as it may to all in its
folder: the file is its run's then, and the tree, which is found not to be whole, gets it anew before the
next launch. No file is lent that somebody else may be writing to: each of its names is a tree's, or that
of a run which is over.
"""

from __future__ import annotations

import json
import os
import stat
import time

from ..base import locks
from ..base.annotations import Any, Iterator
from ..base.lenient import discard, listed
from ..base.paths import Paths, filesystem, is_remote
from ..base.tuples import NamedTuple
from ..base.writing import replace_file
from ..disk import copies

LARGE = 16 << 20  # bytes on the disk from which a file is lent
_LIST = ".large-"
_WRITTEN = ".written"
_MOST_WRITTEN = 1000
_UNKNOWN = 24 * 3600.0  # seconds for which a run of which this machine knows nothing counts as living


class File(NamedTuple):
    """A large file of a tree, and what tells that nobody has written to it."""

    path: str  # in the tree
    sha256: str
    inode: int
    size: int
    time: int  # of its last change, nanoseconds
    mode: int

    def is_same(self, found: os.stat_result) -> bool:
        return (self.inode, self.size, self.time, self.mode) == _marks(found)


def is_large(found: os.stat_result) -> bool:
    """Whether a file is lent: one that is mostly holes takes little room as a copy, too."""
    return found.st_size >= LARGE and found.st_blocks * 512 >= LARGE


def note(tree: str, manifest: list[dict[str, Any]], found: list[os.stat_result]) -> None:
    """Write down the large files of a verified tree before it has its name; raise OSError.

    `found`: what was seen of each of its files when they were verified.
    """
    files = [
        File(entry["path"], entry["sha256"], *_marks(found[place]))
        for place, entry in enumerate(manifest)
        if "sha256" in entry and is_large(found[place])
    ]
    if files:
        replace_file(_list_of(tree), json.dumps([list(file) for file in files]).encode())
    else:
        discard(_list_of(tree))  # of a tree with that name from before


def is_whole(tree: str) -> bool:
    """Whether a tree that is there is as it was sealed; what a task wrote to is remembered."""
    written = [file.sha256 for file in _files(tree) if not _is_there(tree, file)]
    if written:
        above = os.path.dirname(tree)
        known = [sha256 for sha256 in _written(above) if sha256 not in written]
        try:
            replace_file(
                os.path.join(above, _WRITTEN), json.dumps([*known, *written][-_MOST_WRITTEN:]).encode()
            )
        except OSError:
            pass  # a full disk: it is lent, and sent, once more
    return not written


def forget(trees: str) -> None:
    """Remove the lists of trees that are gone."""
    for name in listed(trees):
        if name.startswith(_LIST) and not os.path.isdir(os.path.join(trees, name[len(_LIST) :])):
            discard(os.path.join(trees, name))


class Lender:
    """Lends files of trees to one run."""

    def __init__(self, trees: str, paths: Paths | None) -> None:
        """`paths`: of the state folder, which tells the runs that are over; without it nothing is lent."""
        self._trees = trees
        self._paths = paths
        self._runs = os.path.join(os.path.dirname(trees), "runs")
        self._disk: str | None = None
        self._written: set[str] | None = None
        self._known: dict[str, dict[str, File]] = {}
        self._over: dict[str, bool] = {}

    def give(self, tree: str, path: str, target: str) -> None:
        """Make `target` a large file of a tree: a clone, else lent, else a copy.

        Raise `ChangedError` when it is not what was sealed.
        """
        source = os.path.join(tree, path)
        file = self._files_of(tree).get(path)
        if not copies.clone(source, target) and not (file is not None and self._lend(file, source, target)):
            copies.copy(source, target)
        if file is not None and not file.is_same(os.lstat(source)):
            raise ChangedError(tree)  # somebody may have written while it was copied

    def _lend(self, file: File, source: str, target: str) -> bool:
        if self._written is None:
            self._written = _written(self._trees)
        if file.sha256 in self._written or os.lstat(source).st_uid != os.geteuid():
            return False
        if not self.is_free(source):
            return False
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            return False
        return True

    def is_free(self, source: str) -> bool:
        """Whether nobody can be writing to a file: all its names are known, and none is a living run's."""
        if self._paths is None or self._is_shared():
            return False
        found = os.lstat(source)
        names = found.st_nlink
        paths = set()
        for tree in self._listed():
            for file in self._files_of(tree).values():
                if file.inode == found.st_ino and _is_same_file(os.path.join(tree, file.path), found):
                    paths.add(file.path)
                    names -= 1
        if names <= 0:
            return True
        for run in listed(self._runs):
            of_run = [os.path.join(self._runs, run, "work", path) for path in paths]
            lent = sum(_is_same_file(path, found) for path in of_run)
            if lent and self._is_over(run):
                names -= lent
        return names <= 0

    def _is_shared(self) -> bool:
        """Whether other machines may see the disk: their runs cannot be asked about."""
        if self._disk is None:
            self._disk = filesystem(self._trees)
        return is_remote(self._disk)

    def _listed(self) -> list[str]:
        return [
            os.path.join(self._trees, name[len(_LIST) :])
            for name in listed(self._trees)
            if name.startswith(_LIST)
        ]

    def _files_of(self, tree: str) -> dict[str, File]:
        if tree not in self._known:
            self._known[tree] = {file.path: file for file in _files(tree)}
        return self._known[tree]

    def _is_over(self, run: str) -> bool:
        if run not in self._over:
            assert self._paths is not None
            self._over[run] = _is_over(self._paths, self._runs, run)
        return self._over[run]


class ChangedError(Exception):
    """A tree is not what was sealed: `tree`."""

    def __init__(self, tree: str) -> None:
        super().__init__(tree)
        self.tree = tree


def _is_over(paths: Paths, runs: str, run: str) -> bool:
    """Whether nothing of a run lives on this machine, nor is about to be started."""
    try:
        if os.path.isdir(paths.run(run)):
            held = [paths.keeper(run), *(folder.lock for folder in paths.tasks(run))]
            return not any(map(locks.is_taken, held))
        return time.time() - os.lstat(os.path.join(runs, run)).st_mtime > _UNKNOWN
    except Exception:  # no name of a run, say: in doubt it lives
        return False


def _is_same_file(path: str, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), found)
    except OSError:
        return False


def _is_there(tree: str, file: File) -> bool:
    try:
        return file.is_same(os.lstat(os.path.join(tree, file.path)))
    except OSError:
        return False


def _marks(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode)


def _list_of(tree: str) -> str:
    above, digest = os.path.split(tree)
    return os.path.join(above, _LIST + digest)


def _files(tree: str) -> Iterator[File]:
    for entry in _read(_list_of(tree)):
        if isinstance(entry, list) and [type(one) for one in entry] == [str, str, int, int, int, int]:
            yield File(*entry)


def _written(trees: str) -> set[str]:
    return {str(sha256) for sha256 in _read(os.path.join(trees, _WRITTEN))}


def _read(path: str) -> list[Any]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []
