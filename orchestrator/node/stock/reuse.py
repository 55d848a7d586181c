"""Which files of a new tree a machine has already, in any tree it holds: they are linked, the rest is named.

<state>/trees/<digest>    what a tree consists of, noted when it was verified; that folder is nobody else's

A file counts as held while it is the one that was verified: the same inode, size and time.
"""

from __future__ import annotations

import json
import os
import stat

from ..disk import copies
from ..disk.removing import discard
from .lending import LARGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from .lending import Lender

    Manifest = List[Dict[str, Any]]
    Stat = Tuple[int, int, int, int]  # device, inode, size, time

_MOST = 64  # trees that are looked through, the newest first
_MOST_BYTES = 64 << 20  # of their notes


def note(state: Optional[str], tree: str, manifest: Manifest) -> None:
    """Remember what a verified tree consists of; a disk that is full is no reason to fail."""
    if state is None:
        return
    folder = os.path.join(state, "trees")
    path = os.path.join(folder, os.path.basename(tree))
    hidden = f"{path}.{os.getpid()}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(hidden, "w", encoding="utf-8", errors="surrogateescape") as file:
            stats = [list(_stat(os.path.join(tree, entry["path"]))) for entry in manifest]
            json.dump({"tree": tree, "manifest": manifest, "stats": stats}, file)
        os.rename(hidden, path)
        for _, _, old in _newest_first(folder)[_MOST:]:
            discard(old)
    except OSError:
        pass


def fill(
    state: Optional[str], trees: str, incoming: str, manifest: Manifest, lender: Optional[Lender] = None
) -> Dict[str, Any]:
    """Make in `incoming` what is here already; return the places in the manifest of what is missing.

    `lender`: of trees whose large files tasks may be writing to.

    `base` is the newest tree with the most of the missing paths: those are changes of what it has.
    """
    wanted = {entry["sha256"] for entry in manifest if "sha256" in entry}
    held: Dict[Tuple[str, int], Tuple[str, Stat]] = {}
    others = list(_notes(state, trees))
    for tree, files in others:
        for file in files:
            if file.get("sha256") in wanted:
                where = (os.path.join(tree, file["path"]), file["stat"])
                held.setdefault((file["sha256"], file["mode"]), where)
    folders = {incoming}
    missing = []
    for place, entry in enumerate(manifest):
        if not _make(os.path.join(incoming, entry["path"]), entry, held, folders, lender):
            missing.append(place)
    lacking = {manifest[place]["path"] for place in missing}
    counts = [(sum(file["path"] in lacking for file in files), tree) for tree, files in others]
    most, base = max(counts, key=lambda count: count[0], default=(0, None))
    return {"missing": missing, "base": base if most else None}


def verified(state: Optional[str], trees: str) -> Dict[Stat, str]:
    """The content of the files that trees here hold, by what tells that they are the same still."""
    return {
        file["stat"]: file["sha256"]
        for _, files in _notes(state, trees)
        for file in files
        if "sha256" in file
    }


def stat_of(status: os.stat_result) -> Stat:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _stat(path: str) -> Stat:
    return stat_of(os.lstat(path))


def _make(
    path: str,
    entry: Dict[str, Any],
    held: Dict[Tuple[str, int], Tuple[str, Stat]],
    folders: Any,
    lender: Optional[Lender],
) -> bool:
    parts = entry["path"].split("/")
    if entry["path"].startswith("/") or ".." in parts:
        return False  # the seal refuses it
    above = os.path.dirname(path)
    if above not in folders:
        os.makedirs(above, exist_ok=True)
        folders.add(above)
    if "link" in entry:
        os.symlink(entry["link"], path)
        return True
    source, known = held.get((entry["sha256"], entry["mode"]), ("", None))
    try:
        status = os.lstat(source)
        if stat_of(status) != known:
            return False  # somebody wrote there
        lent = lender is not None and status.st_size >= LARGE and not lender.is_free(source)
        other = stat.S_IMODE(status.st_mode) != entry["mode"]  # by a task that was lent it
        if lent or other or status.st_uid != os.geteuid():  # whoever owns it may change it later
            return _copy(source, path, entry["mode"]) and _stat(source) == known
        os.link(source, path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        return _copy(source, path, entry["mode"])
    return True


def _copy(source: str, path: str, mode: int) -> bool:
    """On a disk without hard links, or with as many of a file as it can have."""
    try:
        copies.copy(source, path)
        os.chmod(path, mode)
    except OSError:
        return False
    return True


def _notes(state: Optional[str], trees: str) -> Iterator[Tuple[str, Manifest]]:
    """The trees below `trees` and what they consist of; notes of trees that are gone go too."""
    if state is None:
        return
    try:
        noted = _newest_first(os.path.join(state, "trees"))
    except OSError:
        return
    room = _MOST_BYTES
    for _, size, path in noted[:_MOST]:
        room -= size
        if room < 0:
            return
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                told = json.load(file)
            tree, files = str(told["tree"]), list(told["manifest"])
            for number, marks in enumerate(told["stats"]):
                files[number]["stat"] = (marks[0], marks[1], marks[2], marks[3])
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if not os.path.isdir(tree):
            discard(path)
        elif os.path.dirname(tree) == trees:
            yield tree, files


def _newest_first(folder: str) -> List[Tuple[float, int, str]]:
    """(time, size, path) of the notes; raise OSError."""
    found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder)]
    return sorted(found, reverse=True)
