"""Notes of verified files and how they looked then, so that they need not be read again, or sent.

<state>/stock/<trees or data>/<digest>    its path; a manifest, and inode, size and time of each of its files

A file counts as verified while it is the one that was: the same inode, size and time.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Iterator, Tuple

from ..base.descriptors import replace_file
from ..base.lenient import discard
from .manifest import File, Manifest

Mark = Tuple[int, int, int, int]  # device, inode, size, time

_MOST = 64  # folders that are looked through, the newest first
_MOST_BYTES = 64 << 20  # of their notes
_FEW = 16  # files that may be looked for in the text of notes


class Note:
    """Notes of one folder."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._text = text

    def names(self, digests: str) -> bool:
        """Tell whether a content may be in the folder: cheaper than to read what the note says."""
        return digests in self._text

    def files(self) -> list[tuple[File, Mark]]:
        """Return the files of a note; none where it is damaged."""
        try:
            told = json.loads(self._text)
            marks = [(mark[0], mark[1], mark[2], mark[3]) for mark in told["marks"]]
            files = [File(*row) for row in told["rows"] if len(row) == 4]
            return [(file, marks[number]) for number, file in enumerate(files)]
        except (ValueError, LookupError, TypeError):
            return []


def notes_of(state: str | None, path: str) -> str:
    """The folder of notes for such a path; without a state folder one that cannot be."""
    return os.path.join(state or os.devnull, "stock", os.path.basename(os.path.dirname(path)))


def write(state: str | None, path: str, manifest: Manifest) -> None:
    """Remember a folder that was just verified; a disk that is full is no reason to fail."""
    folder = notes_of(state, path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        marks = [mark_of(os.lstat(os.path.join(path, file.path))) for file in manifest.files]
        lines = json.dumps(path), json.dumps({"rows": manifest.rows, "marks": marks})
        replace_file(os.path.join(folder, os.path.basename(path)), "\n".join(lines).encode())
        for _, _, old in _newest_first(folder)[_MOST:]:
            discard(old)
    except OSError:
        pass


def forget(state: str | None, path: str) -> None:
    discard(os.path.join(notes_of(state, path), os.path.basename(path)))


def read(state: str | None, path: str) -> list[tuple[File, Mark]]:
    """The files of a folder that was verified here; none for another one."""
    note = _open(os.path.join(notes_of(state, path), os.path.basename(path)))
    return note.files() if note is not None and note.path == path else []


def mark_of(found: os.stat_result) -> Mark:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def is_same(folder: str, file: File, mark: Mark) -> bool:
    try:
        return mark_of(os.lstat(os.path.join(folder, file.path))) == mark
    except OSError:
        return False


def fill(state: str | None, path: str, incoming: str, manifest: Manifest) -> tuple[set[int], str | None]:
    """Link into `incoming` the files that other folders beside `path` have.

    Return their places, and the newest folder that has earlier versions of files that are missing.
    """
    lacking: dict[tuple[str, int], list[int]] = {}
    for number, file in enumerate(manifest.files):
        if file.size and not os.path.lexists(os.path.join(incoming, file.path)):
            lacking.setdefault((file.digests, file.mode), []).append(number)
    linked: set[int] = set()
    looked: list[tuple[str, set[str]]] = []
    for note in _beside(state, path):
        if not lacking:
            break
        if looked and len(lacking) <= _FEW and not any(note.names(digests) for digests, _ in lacking):
            continue  # the newest ones are what is edited: the others are read for what they have alone
        files = note.files()
        looked.append((note.path, {file.path for file, _ in files}))
        for file, mark in files:
            for number in lacking.pop((file.digests, file.mode), ()):
                target = os.path.join(incoming, manifest.files[number].path)
                if _link(os.path.join(note.path, file.path), mark, target, file.mode):
                    linked.add(number)
    paths = {manifest.files[number].path for numbers in lacking.values() for number in numbers}
    return linked, next((base for base, there in looked if paths & there), None)


def _link(source: str, mark: Mark, target: str, mode: int) -> bool:
    """Link a file that nobody wrote to since; on a disk without links it is sent."""
    try:
        found = os.lstat(source)
        if mark_of(found) != mark or stat.S_IMODE(found.st_mode) != mode or found.st_uid != os.geteuid():
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.link(source, target, follow_symlinks=False)
        return True
    except OSError:
        return False


def _beside(state: str | None, path: str) -> Iterator[Note]:
    """Notes of folders beside `path`, the newest first; notes of folders that are gone go too."""
    try:
        noted = _newest_first(notes_of(state, path))
    except OSError:
        return
    room = _MOST_BYTES
    for _, size, place in noted[:_MOST]:
        room -= size
        note = _open(place) if room >= 0 else None
        if note is None:
            continue
        if not os.path.isdir(note.path):
            discard(place)
        elif os.path.dirname(note.path) == os.path.dirname(path):
            yield note


def _open(place: str) -> Note | None:
    try:
        with open(place, encoding="ascii") as file:
            return Note(str(json.loads(file.readline())), file.read())
    except (OSError, ValueError):
        return None


def _newest_first(folder: str) -> list[tuple[float, int, str]]:
    """(time, size, path) of the notes; raise OSError."""
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries]
    return sorted(found, reverse=True)
