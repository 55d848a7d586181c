"""Whether a folder is what a manifest says: every file of it, and nothing else."""

from __future__ import annotations

import os
import stat

from ..base.annotations import Any, Iterator
from . import reuse


def compare(
    incoming: str, manifest: list[dict[str, Any]], verified: reuse.Verified
) -> tuple[list[str], list[os.stat_result]]:
    """What is wrong, a line per file, and what was seen of the others, both in the order of the manifest."""
    wrong, seen = [], []
    for entry in manifest:
        try:
            seen.append(_check(incoming, entry, verified))
        except _WrongError as error:
            wrong.append(f"{entry['path']}: {error}")
    known = {entry["path"] for entry in manifest}
    start = len(incoming) + 1
    for found in walk(incoming) if os.path.isdir(incoming) else ():
        path = found.path[start:]
        if path not in known:
            wrong.append(f"{path}: not in the manifest")
    return wrong, seen


class _WrongError(Exception):
    """Why a file is not what the manifest says."""


def _check(incoming: str, entry: dict[str, Any], verified: reuse.Verified) -> os.stat_result:
    """What an entry of the manifest is like on the disk; raise _WrongError."""
    name = entry["path"]
    if name.startswith("/") or ".." in name.split("/"):
        raise _WrongError("out of the tree")
    path = f"{incoming}/{name}"
    try:
        found = os.lstat(path)
        if "link" in entry:
            if not stat.S_ISLNK(found.st_mode):
                raise _WrongError("not a symbolic link")
            if os.readlink(path) != entry["link"]:
                raise _WrongError(f"a link to {os.readlink(path)}")
            return found
        if not stat.S_ISREG(found.st_mode):
            raise _WrongError("not a file")
        if verified.content(found) != entry["sha256"] and sha256(path) != entry["sha256"]:
            raise _WrongError(f"other content ({found.st_size} bytes)")
        if stat.S_IMODE(found.st_mode) != entry["mode"]:
            return _set_mode(path, found, entry["mode"])
    except FileNotFoundError:
        raise _WrongError("missing") from None
    return found


def _set_mode(path: str, found: os.stat_result, mode: int) -> os.stat_result:
    """A umask is no reason to fail; but a file shared with another tree is not ours to change."""
    if found.st_nlink > 1:
        raise _WrongError(f"mode {stat.S_IMODE(found.st_mode):o} instead of {mode:o}")
    os.chmod(path, mode)
    return os.lstat(path)


def sha256(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while True:
            data = file.read(1 << 20)
            if not data:
                return digest.hexdigest()
            digest.update(data)


def walk(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder that is no folder; links are not followed."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry
