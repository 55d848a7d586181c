"""Which files of a data set are here and right: from what was noted when they were verified, or read anew."""

from __future__ import annotations

import json
import os
import stat

from ..base import trust
from ..base.annotations import Any
from ..base.lenient import discard
from ..disk.removing import remove
from ..serve.agent import Agent
from . import reuse
from .comparison import sha256
from .reuse import Manifest


def is_whole(path: str, manifest: Manifest, notes: str | None) -> bool:
    """Whether it is here and right; read as a whole unless we noted that it is."""
    if not trust.is_ours(path):
        return False
    told = noted(notes, path)
    if told is not None:
        return all(is_same(os.path.join(path, name), known, None) for name, _, known in told)
    if not all(_is_right(path, one) for one in manifest):
        return False
    reuse.note(notes, path, manifest)
    return True


def right(folder: str, manifest: Manifest, *, linked: bool = False) -> set[str]:
    """The files that are as they should be; others go. With `linked` only those with several names count."""
    good = set()
    for one in manifest:
        path = os.path.join(folder, one["path"])
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if linked and found.st_nlink < 2 and stat.S_ISREG(found.st_mode):
            continue  # pieces of it are there: the map says which
        if _is_file(found, one) and sha256(path) == one["sha256"]:
            good.add(one["path"])
        else:
            remove(path)
    return good


def _is_right(folder: str, one: dict[str, Any]) -> bool:
    path = os.path.join(folder, one["path"])
    try:
        return _is_file(os.lstat(path), one) and sha256(path) == one["sha256"]
    except OSError:
        return False


def _is_file(found: os.stat_result, one: dict[str, Any]) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size == one["size"]


def noted(notes: str | None, path: str) -> list[tuple[str, str, Any]] | None:
    """(name, digest, what tells that it is the same) of each file of what was verified here."""
    if notes is None:
        return None
    try:
        with open(_note_of(notes, path), encoding="utf-8", errors="surrogateescape") as file:
            told = json.load(file)
        if told["tree"] != path:
            return None
        return [
            (str(one["path"]), str(one["sha256"]), tuple(told["stats"][number]))
            for number, one in enumerate(told["manifest"])
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def is_same(path: str, known: Any, digest: str | None) -> bool:
    try:
        found = os.lstat(path)
        return reuse.stat_of(found) == known and (digest is None or sha256(path) == digest)
    except OSError:
        return False


def notes_of(agent: Agent) -> str | None:
    """Where `reuse` keeps its notes of data; apart from those of code, of which many come and go."""
    return None if agent.state is None else os.path.join(agent.state, "data")


def _note_of(notes: str, path: str) -> str:
    return os.path.join(notes, "trees", os.path.basename(path))


def forget(notes: str | None, path: str) -> None:
    if notes is not None:
        discard(_note_of(notes, path))
