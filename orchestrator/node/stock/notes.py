"""Notes of verified files with their size and time, so that they need not be read or sent again.

<state>/stock/<trees or data>/<digest>    its path; a manifest, and inode, size and time of each of its files

A file stays verified as long as it has the same inode, size and time.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from typing import Iterator

from ..base.descriptors import replace_file
from ..base.lenient import discard
from .manifest import File, Manifest

_MOST = 64  # folders that are searched, the newest first
_FEW = 16  # files that may be searched for in the text of notes


def write(state: str | None, path: str, manifest: Manifest) -> None:
    """Store a note of a folder that was just verified; a full disk is not an error."""
    place = _place(state, path)
    with suppress(OSError):
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        marks = [_mark(os.lstat(f"{path}/{file.path}")) for file in manifest.files]
        lines = json.dumps(path), json.dumps({"rows": manifest.rows, "marks": marks})
        replace_file(place, "\n".join(lines).encode())
        for old in _newest_first(os.path.dirname(place))[_MOST:]:
            discard(old)


def forget(state: str | None, path: str) -> None:
    discard(_place(state, path))


def is_unchanged(state: str | None, path: str) -> bool | None:
    """Return whether a folder is as it was verified here; None if it was not."""
    noted, text = _open(_place(state, path))
    manifest, marks = _decode(text)
    if noted != path or not marks:
        return None
    try:
        return marks == [_mark(os.lstat(f"{path}/{file.path}")) for file in manifest.files]
    except OSError:
        return False


def fill(state: str | None, path: str, incoming: str, manifest: Manifest) -> tuple[set[int], str | None]:
    """Link into `incoming` the files that other folders next to `path` have.

    Return their positions, and the newest folder with earlier versions of missing files.
    """
    lacking: dict[tuple[str, int], list[int]] = {}
    for number, file in enumerate(manifest.files):
        if file.size and not os.path.lexists(f"{incoming}/{file.path}"):
            lacking.setdefault((file.digests, file.mode), []).append(number)
    linked: set[int] = set()
    folders: list[tuple[str, list[File]]] = []
    for folder, text in _beside(state, path):
        if not lacking:
            break
        if folders and len(lacking) <= _FEW and not any(digests in text for digests, _ in lacking):
            continue  # the newest ones are being edited: the others are read for what only they have
        other, marks = _decode(text)
        folders.append((folder, other.files))
        for place, file in enumerate(other.files):
            for number in lacking.pop((file.digests, file.mode), ()):
                target = f"{incoming}/{manifest.files[number].path}"
                if _link(f"{folder}/{file.path}", marks[place], target, file.mode):
                    linked.add(number)
    paths = {manifest.files[number].path for numbers in lacking.values() for number in numbers}
    base = next((folder for folder, files in folders if any(file.path in paths for file in files)), None)
    return linked, base


def _place(state: str | None, path: str) -> str:
    """Return the path of a folder's note; without a state folder it cannot exist."""
    above, name = os.path.split(path)
    return os.path.join(state or os.devnull, "stock", os.path.basename(above), name)


def _open(place: str) -> tuple[str, str]:
    """Open a note: a path, and an undecoded record."""
    try:
        with open(place, encoding="ascii") as file:
            return str(json.loads(file.readline())), file.read()
    except (OSError, ValueError):
        return "", ""


def _decode(text: str) -> tuple[Manifest, list[list[int]]]:
    """Return a manifest and the mark of each file; nothing for a damaged note."""
    try:
        note = json.loads(text)
        manifest, marks = Manifest(note["rows"]), list(note["marks"])
    except (ValueError, LookupError, TypeError):
        return Manifest(()), []
    return (manifest, marks) if len(marks) == len(manifest.files) else (Manifest(()), [])


def _beside(state: str | None, path: str) -> Iterator[tuple[str, str]]:
    """Yield notes of folders next to `path`, the newest first; remove notes of missing folders."""
    try:
        places = _newest_first(os.path.dirname(_place(state, path)))
    except OSError:
        return
    for place in places[:_MOST]:
        folder, text = _open(place)
        if not os.path.isdir(folder):
            discard(place)
        elif os.path.dirname(folder) == os.path.dirname(path):
            yield folder, text


def _newest_first(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        timed = sorted(((entry.stat().st_mtime, entry.path) for entry in entries), reverse=True)
    return [path for _, path in timed]


def _mark(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _link(source: str, mark: list[int], target: str, mode: int) -> bool:
    """Link a file that has not been written since; on a disk without links it is sent."""
    try:
        status = os.lstat(source)
        if _mark(status) != mark or stat.S_IMODE(status.st_mode) != mode or status.st_uid != os.geteuid():
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.link(source, target, follow_symlinks=False)
        return True
    except OSError:
        return False
