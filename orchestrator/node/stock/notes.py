"""Notes of verified files and how they looked then, so that they need not be read again, or sent.

<state>/stock/<trees or data>/<digest>    its path; a manifest, and inode, size and time of each of its files

A file counts as verified while it is the one that was: the same inode, size and time.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Iterator

from ..base.descriptors import replace_file
from ..base.lenient import discard
from .manifest import File, Manifest

_MOST = 64  # folders that are looked through, the newest first
_FEW = 16  # files that may be looked for in the text of notes


def write(state: str | None, path: str, manifest: Manifest) -> None:
    """Remember a folder that was just verified; a disk that is full is no reason to fail."""
    place = _place(state, path)
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        marks = [_mark(os.lstat(os.path.join(path, file.path))) for file in manifest.files]
        lines = json.dumps(path), json.dumps({"rows": manifest.rows, "marks": marks})
        replace_file(place, "\n".join(lines).encode())
        for old in _newest_first(os.path.dirname(place))[_MOST:]:
            discard(old)
    except OSError:
        pass


def forget(state: str | None, path: str) -> None:
    discard(_place(state, path))


def is_unchanged(state: str | None, path: str) -> bool | None:
    """Tell whether a folder is as it was verified here; None where it was not."""
    noted, text = _open(_place(state, path))
    manifest, marks = _decode(text)
    if noted != path or not marks:
        return None
    paths = (os.path.join(path, file.path) for file in manifest.files)
    return all(map(_is_same, paths, marks))


def fill(state: str | None, path: str, incoming: str, manifest: Manifest) -> tuple[set[int], str | None]:
    """Link into `incoming` the files that other folders beside `path` have.

    Return their places, and the newest folder that has earlier versions of files that are missing.
    """
    lacking: dict[tuple[str, int], list[int]] = {}
    for number, file in enumerate(manifest.files):
        if file.size and not os.path.lexists(os.path.join(incoming, file.path)):
            lacking.setdefault((file.digests, file.mode), []).append(number)
    linked: set[int] = set()
    folders: list[tuple[str, list[File]]] = []
    for folder, text in _beside(state, path):
        if not lacking:
            break
        if folders and len(lacking) <= _FEW and not any(digests in text for digests, _ in lacking):
            continue  # the newest ones are what is edited: the others are read for what they have alone
        other, marks = _decode(text)
        folders.append((folder, other.files))
        for place, file in enumerate(other.files):
            for number in lacking.pop((file.digests, file.mode), ()):
                target = os.path.join(incoming, manifest.files[number].path)
                if _link(os.path.join(folder, file.path), marks[place], target, file.mode):
                    linked.add(number)
    paths = {manifest.files[number].path for numbers in lacking.values() for number in numbers}
    base = next((one for one, files in folders if any(file.path in paths for file in files)), None)
    return linked, base


def _place(state: str | None, path: str) -> str:
    """Return where the note of a folder is; without a state folder where none can be."""
    above, name = os.path.split(path)
    return os.path.join(state or os.devnull, "stock", os.path.basename(above), name)


def _open(place: str) -> tuple[str, str]:
    """Read a note: a path, and what is known of it, not decoded yet."""
    try:
        with open(place, encoding="ascii") as file:
            return str(json.loads(file.readline())), file.read()
    except (OSError, ValueError):
        return "", ""


def _decode(text: str) -> tuple[Manifest, list[list[int]]]:
    """Return a manifest and the mark of each file; nothing of a note that is damaged."""
    try:
        note = json.loads(text)
        manifest, marks = Manifest(note["rows"]), list(note["marks"])
    except (ValueError, LookupError, TypeError):
        return Manifest(()), []
    return (manifest, marks) if len(marks) == len(manifest.files) else (Manifest(()), [])


def _beside(state: str | None, path: str) -> Iterator[tuple[str, str]]:
    """Yield notes of folders beside `path`, the newest first; notes of folders that are gone go too."""
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
        return [
            path for _, path in sorted(((one.stat().st_mtime, one.path) for one in entries), reverse=True)
        ]


def _mark(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _is_same(path: str, mark: list[int]) -> bool:
    try:
        return _mark(os.lstat(path)) == mark
    except OSError:
        return False


def _link(source: str, mark: list[int], target: str, mode: int) -> bool:
    """Link a file that nobody wrote to since; on a disk without links it is sent."""
    try:
        found = os.lstat(source)
        if _mark(found) != mark or stat.S_IMODE(found.st_mode) != mode or found.st_uid != os.geteuid():
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.link(source, target, follow_symlinks=False)
        return True
    except OSError:
        return False
