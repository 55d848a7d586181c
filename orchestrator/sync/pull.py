"""What a training left on a host, into a folder of a person: added to what is there, never over it.

A record in that folder says what earlier pulls of the same run put there, and how it looked then; such
files are renewed. Whatever else is there and differs is the person's own, and the pull stops before it
begins.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.node import archive, replace
from orchestrator.node.archive import Entry
from orchestrator.sync.files import Fetched, look, missing, our_disk
from orchestrator.sync.push import Session
from orchestrator.sync.streams import Told, receive

RECORD = ".orchestrate-pull.json"
_SHOWN = 5


@dataclass(frozen=True)
class Part:
    """Entries below one folder of a host, and where they belong below the person's folder."""

    root: str
    entries: tuple[Entry, ...]
    below: str  # "" or a path that ends with a slash

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def files(self) -> int:
        return sum(entry.kind != archive.FOLDER for entry in self.entries)


def choose(
    session: Session, work: str, paths: Sequence[str], code: Collection[tuple[str, int]]
) -> list[Part]:
    """What these paths and patterns mean on a host; all of its work folder when there are none.

    `code` are the names and sizes of files that are left out. Raise HostError (kind "missing") for a path
    that matches nothing.
    """
    there = look(session, work)
    if there.kind != archive.FOLDER:
        raise missing(session, work, there)
    parts = []
    inside = [entry for entry in there.entries if (entry.path, entry.size) not in code]
    if not paths:
        return [Part(there.root, _with_folders(inside, there.entries), "")]
    chosen: dict[str, Entry] = {}
    links = {entry.path for entry in there.entries if entry.kind == archive.LINK}
    for path in (path.rstrip("/") or "/" for path in paths):
        if path == ".":
            parts.append(Part(there.root, _with_folders(inside, there.entries), ""))
            continue
        if path in links or path.startswith(("/", "~")):
            parts.append(_elsewhere(session, path if path not in links else f"{there.root}/{path}", path))
            continue
        # What is asked for by name is wanted, code or not.
        found = [entry for entry in there.entries if _matches(entry.path, path)]
        if not found:
            raise missing(session, f"{work}/{path}", look(session, f"{work}/{_plain(path)}"))
        chosen.update({entry.path: entry for entry in found})
    if chosen:
        parts.append(Part(there.root, tuple(chosen.values()), ""))
    return parts


def code_of(session: Session, trees: Sequence[str], before: float, work: str) -> set[tuple[str, int]]:
    """The files of a work folder that are the code as it was sent: a tree has them, alike in size, and
    nothing wrote to them since the tasks started (`before`, by the host's clock).
    """
    known = {
        (entry.path, entry.size)
        for tree in trees
        for entry in look(session, tree).entries
        if entry.kind != archive.FOLDER
    }
    return {
        (entry.path, entry.size)
        for entry in look(session, work).entries
        if (entry.path, entry.size) in known and entry.mtime_ns < before * 1e9
    }


def take(session: Session, parts: Sequence[Part], to: Path, run: str, told: Told) -> Fetched:
    """Bring the parts into the folder `to`; raise UsageError for what it would overwrite, before anything
    was changed, or HostError, or ClusterError for our own disk.
    """
    began = time.monotonic()
    with our_disk("write", to):
        record = _read_record(to, run)
        # A file of that name on a host (a pulled folder, sent along as code) is not to replace the record.
        differing = [
            (part, [one for one in part.entries if not _is_here(to, part, one) and one.path != RECORD])
            for part in parts
        ]
        _refuse_to_overwrite(to, differing, record)
        to.mkdir(parents=True, exist_ok=True)
        files = size = 0
        for part, entries in differing:
            if entries:
                moved = _bring(session, part, entries, to, told)
                record.update({name: [one.size, one.mtime_ns] for name, one in moved})
                _write_record(to, run, record)
                files += sum(one.kind != archive.FOLDER for _, one in moved)
                size += sum(one.size for _, one in moved)
    return Fetched(files, size, time.monotonic() - began)


def keep_from_launches(to: Path, run: str) -> None:
    """Have git, and so the next launch, take the folder for results and not for code."""
    path = to / ".gitignore"
    with our_disk("write", to):
        if os.path.lexists(path):
            return
        path.write_text("*\n", encoding="ascii")
        record = _read_record(to, run)
        if record:  # ours, so that one of the run's own may take its place
            found = archive.entry(str(path), path.name)
            _write_record(to, run, {**record, path.name: [found.size, found.mtime_ns]})


def _with_folders(wanted: list[Entry], everything: Sequence[Entry]) -> tuple[Entry, ...]:
    """Without folders that hold nothing but code."""
    full = {parent for entry in wanted if entry.kind != archive.FOLDER for parent in _parents(entry.path)}
    code_folders = {parent for entry in everything if entry not in wanted for parent in _parents(entry.path)}
    return tuple(
        entry
        for entry in wanted
        if entry.kind != archive.FOLDER or entry.path in full or entry.path not in code_folders
    )


def _elsewhere(session: Session, remote: str, name: str) -> Part:
    there = look(session, remote)
    if not there.kind:
        raise missing(session, remote, there)
    if there.kind == archive.FILE:
        return Part(there.root, there.entries, "")
    return Part(there.root, there.entries, f"{Path(name).name if name[0] in '/~' else name}/")


def _matches(path: str, pattern: str) -> bool:
    """A path, one below it, or what a pattern fits; `*` reaches over folders."""
    return path == pattern or any(fnmatch.fnmatchcase(one, pattern) for one in (path, *_parents(path)))


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _plain(pattern: str) -> str:
    """The folders of a pattern that are no pattern, and something that is not there."""
    parts = pattern.split("/")
    first = next((n for n, part in enumerate(parts) if set(part) & set("*?[")), None)
    return pattern if first is None else "/".join([*parts[:first], "\n"])


def _is_here(to: Path, part: Part, one: Entry) -> bool:
    found = _local(to, part.below + one.path)
    return found is not None and one.same(found)


def _local(to: Path, name: str) -> Entry | None:
    try:
        return archive.entry(str(to / name), name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refuse_to_overwrite(
    to: Path, differing: Sequence[tuple[Part, list[Entry]]], record: dict[str, list[int]]
) -> None:
    ours = {
        name
        for name, known in record.items()
        if (found := _local(to, name)) is not None and [found.size, found.mtime_ns] == known
    }
    wrong = {
        place
        for part, entries in differing
        for one in entries
        if (place := _in_the_way(to, part.below + one.path, one)) is not None and place not in ours
    }
    if wrong:
        shown = sorted(wrong)[:_SHOWN]
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"will not overwrite what is in {to}",
            why=f"not of this run, or changed since it was pulled: {', '.join(shown)}{more}",
            hint="--to another folder, or move them away",
        )


def _in_the_way(to: Path, name: str, one: Entry) -> str | None:
    """What would be overwritten, or written through: the file itself, or a folder above it that is none."""
    for above in _parents(name):
        found = _local(to, above)
        if found is not None and found.kind != archive.FOLDER:
            return above
    found = _local(to, name)
    return None if found is None or found.kind == one.kind == archive.FOLDER else name


def _bring(
    session: Session, part: Part, entries: Sequence[Entry], to: Path, told: Told
) -> list[tuple[str, Entry]]:
    """Into a hidden folder first, then each to its place; return what came, as it is here."""
    incoming = Path(replace.beside(str(to / "pull")))
    try:
        names = [entry.path for entry in entries]
        gone = set(
            receive(session, part.root, names, incoming, size=sum(one.size for one in entries), told=told)
        )
        moved = []
        for entry in entries:
            if entry.path in gone:
                continue
            name = part.below + entry.path
            if entry.kind == archive.FOLDER:
                (to / name).mkdir(parents=True, exist_ok=True)
            else:
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                (incoming / entry.path).replace(to / name)
                moved.append((name, archive.entry(str(to / name), name)))
        return moved
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _read_record(to: Path, run: str) -> dict[str, list[int]]:
    """What earlier pulls of this run put here: name -> size and time."""
    try:
        known = json.loads((to / RECORD).read_text(encoding="utf-8"))
        return dict(known["files"]) if known["run"] == run else {}
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return {}


def _write_record(to: Path, run: str, files: dict[str, list[int]]) -> None:
    beside = to / f"{RECORD}.{os.getpid()}"
    beside.write_text(json.dumps({"run": run, "files": files}), encoding="utf-8")
    beside.replace(to / RECORD)
