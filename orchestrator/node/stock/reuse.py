"""Which files of a new tree a machine has already, in any tree it holds: they are linked, the rest is named.

<state>/trees/<digest>    what a tree consists of, noted when it was verified; that folder is nobody else's

A file counts as held while it is the one that was verified: the same inode, size and time.
"""

from __future__ import annotations

import json
import os
import stat

from ..base.annotations import Any, Iterator, TypeAlias
from ..base.lenient import discard
from ..base.tuples import NamedTuple
from ..base.writing import replace_file
from ..disk import copies

Manifest: TypeAlias = "list[dict[str, Any]]"
Stat: TypeAlias = "tuple[int, int, int, int]"  # device, inode, size, time
Held: TypeAlias = "dict[tuple[str, int], tuple[str, Stat]]"

_MOST = 64  # trees that are looked through, the newest first
_MOST_BYTES = 64 << 20  # of their notes
_FEW = 16  # files that may be looked for in the text of notes
_START = '{"tree": '


class Filled(NamedTuple):
    """What came of `fill`."""

    missing: list[int]  # places in the manifest
    base: str | None  # the newest tree with the most of the missing paths: it has earlier versions
    known: dict[Stat, str]  # the contents of the files that are links to another tree's


class Verified:
    """The contents of the files that trees here hold; their notes are read as they are needed."""

    def __init__(self, state: str | None, trees: str, known: dict[Stat, str] | None = None) -> None:
        self._notes = _notes(state, trees)
        self._known = dict(known or {})

    def content(self, found: os.stat_result) -> str | None:
        """The digest of a file that is a tree's, too, and need not be read again."""
        if found.st_nlink < 2:
            return None
        mark = stat_of(found)
        while mark not in self._known:
            noted = next(self._notes, None)
            if noted is None:
                return None
            for file in noted.files():
                if "sha256" in file:
                    self._known.setdefault(file["stat"], file["sha256"])
        return self._known[mark]


def note(state: str | None, tree: str, manifest: Manifest, found: list[os.stat_result] | None = None) -> None:
    """Remember what a verified tree consists of; a disk that is full is no reason to fail.

    `found`: what was seen of each of its files when they were verified.
    """
    if state is None:
        return
    folder = os.path.join(state, "trees")
    path = os.path.join(folder, os.path.basename(tree))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if found is None:
            found = [os.lstat(os.path.join(tree, entry["path"])) for entry in manifest]
        stats = [stat_of(status) for status in found]
        replace_file(path, json.dumps({"tree": tree, "manifest": manifest, "stats": stats}).encode())
        for _, _, old in _newest_first(folder)[_MOST:]:
            discard(old)
    except OSError:
        pass


def fill(state: str | None, trees: str, incoming: str, manifest: Manifest) -> Filled:
    """Link into `incoming` what is here already."""
    held, base = _held(state, trees, manifest)
    filler = _Filler(incoming, held)
    missing = [place for place, entry in enumerate(manifest) if not filler.make(entry)]
    return Filled(missing, base, filler.known)


def _held(state: str | None, trees: str, manifest: Manifest) -> tuple[Held, str | None]:
    """Where there are files of a content and mode that is wanted; and the base of what is not there."""
    lacking = {(entry["sha256"], entry["mode"]): entry["path"] for entry in manifest if "sha256" in entry}
    held: Held = {}
    read: list[tuple[str, set[str]]] = []  # trees and their paths
    for noted in _notes(state, trees):
        if not lacking:
            break
        if read and len(lacking) <= _FEW and not any(noted.names(sha256) for sha256, _ in lacking):
            continue  # the newest ones are what is edited: the others are read for what they have alone
        files = noted.files()
        read.append((noted.tree, {file["path"] for file in files}))
        for file in files:
            wanted = (file.get("sha256"), file.get("mode"))
            if wanted in lacking:
                held[wanted] = (f"{noted.tree}/{file['path']}", file["stat"])
                del lacking[wanted]
    paths = set(lacking.values())
    counts = [(len(paths & there), tree) for tree, there in read]
    most, base = max(counts, key=lambda count: count[0], default=(0, None))
    return held, base if most else None


def stat_of(status: os.stat_result) -> Stat:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class _Filler:
    """Makes files of a new tree from others."""

    def __init__(self, incoming: str, held: Held) -> None:
        self._incoming = incoming
        self._held = held
        self._folders = {incoming}
        self.known: dict[Stat, str] = {}

    def make(self, entry: dict[str, Any]) -> bool:
        """Whether it is there now; raise OSError."""
        name = entry["path"]
        if name.startswith("/") or ".." in name.split("/"):
            return False  # the seal refuses it
        path = f"{self._incoming}/{name}"
        above = os.path.dirname(path)
        if above not in self._folders:
            os.makedirs(above, exist_ok=True)
            self._folders.add(above)
        if "link" in entry:
            os.symlink(entry["link"], path)
            return True
        content = (entry["sha256"], entry["mode"])
        return content in self._held and self._link(*self._held[content], path, entry)

    def _link(self, source: str, mark: Stat, path: str, entry: dict[str, Any]) -> bool:
        mode = entry["mode"]
        try:
            status = os.lstat(source)
            if stat_of(status) != mark:
                return False  # somebody wrote there
            if (
                stat.S_IMODE(status.st_mode) != mode or status.st_uid != os.geteuid()
            ):  # whoever owns it may change it later
                return _copy(source, path, mode) and stat_of(os.lstat(source)) == mark
            os.link(source, path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return _copy(source, path, mode)
        self.known[mark] = entry["sha256"]
        return True


def _copy(source: str, path: str, mode: int) -> bool:
    """On a disk without hard links, or with as many of a file as it can have."""
    try:
        copies.copy(source, path)
        os.chmod(path, mode)
    except OSError:
        return False
    return True


class _Noted:
    """What was noted of one tree."""

    def __init__(self, tree: str, text: str) -> None:
        self.tree = tree
        self._text = text

    def names(self, sha256: str) -> bool:
        """Whether a content may be in it: cheaper than to read what it says."""
        return sha256 in self._text

    def files(self) -> Manifest:
        """Its files, each with its `stat`; none where the note is damaged."""
        try:
            told = json.loads(self._text)
            files = list(told["manifest"])
            for number, marks in enumerate(told["stats"]):
                files[number]["stat"] = (marks[0], marks[1], marks[2], marks[3])
        except (ValueError, LookupError, TypeError):
            return []
        return files


def _notes(state: str | None, trees: str) -> Iterator[_Noted]:
    """Of the trees below `trees`, the newest first; notes of trees that are gone go too."""
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
            with open(path, encoding="ascii") as file:
                text = file.read()
            tree = json.JSONDecoder().raw_decode(text, len(_START))[0] if text.startswith(_START) else None
        except (OSError, ValueError):
            continue
        if not isinstance(tree, str):
            continue
        if not os.path.isdir(tree):
            discard(path)
        elif os.path.dirname(tree) == trees:
            yield _Noted(tree, text)


def _newest_first(folder: str) -> list[tuple[float, int, str]]:
    """(time, size, path) of the notes; raise OSError."""
    found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder)]
    return sorted(found, reverse=True)
