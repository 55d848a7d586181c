"""Fetching a training's files into a folder of a person: added to what is there, never over it.

A record in that folder says what earlier pulls of the same run put there, and how it looked then; such
files are renewed. Whatever else is there and differs is the person's own, and the pull stops before it
begins.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from orchestrator.errors import UsageError
from orchestrator.node.disk import listing
from orchestrator.node.disk.below import Below, is_no_folder, parts_of
from orchestrator.node.disk.listing import FOLDER, LINK, Entry
from orchestrator.node.disk.removing import remove as discard
from orchestrator.plainfile import read_plain, write_atomically
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import (
    Fetched,
    HostListing,
    Staging,
    Told,
    look,
    missing,
    our_disk,
    parents,
    receive,
)
from orchestrator.text import plain

RECORD = ".orchestrate-pull.json"
STAGING = ".orchestrate-incoming-"
_MOST_RECORD = 256 << 20  # bytes: as long as the names of a listing may be
_SHOWN = 5


class Part(Struct, frozen=True):
    """Files and links below one folder of a host, and where they belong below the person's folder."""

    root: str
    entries: tuple[Entry, ...]
    below: str  # "" or a path that ends with a slash
    source: str  # what was looked at
    left_out: tuple[str, ...] = ()  # see `admit`

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


def choose(
    session: Conversation, work: str, paths: Sequence[str], trees: Sequence[str] = (), before: float = 0.0
) -> list[Part]:
    """Return what these paths and patterns mean on a host; all of its work folder when there are none.

    The code as it was sent is left out: files that are in one of the `trees`, alike in size, and that nothing
    wrote to since the tasks started (`before`, by the host's clock). Raise HostError (kind "missing") for a
    path that matches nothing.
    """
    there = look(session, work)
    if there.kind != FOLDER:
        raise missing(session, work)
    code = {(entry.path, entry.size) for tree in trees for entry in _files(look(session, tree))}
    made = [
        entry
        for entry in _files(there)
        if (entry.path, entry.size) not in code or entry.mtime_ns >= before * 1e9
    ]
    parts, chosen = [], dict[str, Entry]()
    links = {entry.path for entry in there.entries if entry.kind == LINK} | set(there.left_out)
    for path in (path.rstrip("/") or "/" for path in paths or ["."]):
        if path == ".":
            parts.append(Part(there.root, tuple(made), "", work, there.left_out))
        elif path in links or path.startswith(("/", "~")):
            parts.append(_elsewhere(session, path if path not in links else f"{there.root}/{path}", path))
        elif any(_matches(entry.path, path) for entry in there.entries):  # asked for by name: code, too
            chosen.update({entry.path: entry for entry in _files(there) if _matches(entry.path, path)})
        else:
            raise missing(session, f"{work}/{path}", {one.path.partition("/")[0] for one in there.entries})
    if chosen:
        parts.append(Part(there.root, tuple(chosen.values()), "", work))
    return parts


def _files(there: HostListing) -> list[Entry]:
    """Files and links; a folder is where they are."""
    return [entry for entry in there.entries if entry.kind != FOLDER]


def take(session: Conversation, parts: Sequence[Part], to: Path, run: str, told: Told) -> Fetched:
    """Bring the parts into the folder `to`; raise UsageError for what it would overwrite, before anything
    was changed, or HostError, or ClusterError for our own disk.
    """
    began = time.monotonic()
    with our_disk(to):
        to.mkdir(parents=True, exist_ok=True)
        with Below(str(to)) as top:
            files, size = Taking(session, to, top, run, told, read_record(to, run)).take(parts)
    return Fetched(files, size, time.monotonic() - began)


def keep_from_launches(to: Path, run: str) -> None:
    """Have git, and so the next launch, take the folder for results and not for code."""
    path = to / ".gitignore"
    with our_disk(to):
        if os.path.lexists(path):
            return
        path.write_text("*\n", encoding="ascii")
        record = read_record(to, run)
        if record:  # ours, so that one of the run's own may take its place
            found = listing.entry_at(str(path), None, path.name)
            write_record(to, run, {**record, path.name: [found.size, found.mtime_ns]})


def _elsewhere(session: Conversation, remote: str, name: str) -> Part:
    there = look(session, remote)
    if not there.kind:
        raise missing(session, remote)
    below = Path(name).name if name[0] in "/~" else name
    below = f"{below}/" if below and there.kind == FOLDER else ""
    return Part(there.root, tuple(_files(there)), below, remote, there.left_out)


def _matches(path: str, pattern: str) -> bool:
    """A path, one below it, or what a pattern fits; `*` reaches over folders."""
    return path == pattern or any(fnmatch.fnmatchcase(one, pattern) for one in (path, *parents(path)))


class Taking(Struct):
    """One pull into an open folder; what is a person's own there is known by the record."""

    session: Conversation
    to: Path
    top: Below
    run: str
    told: Told
    record: dict[str, list[int]]

    def take(self, parts: Sequence[Part]) -> tuple[int, int]:
        """The files that came and their bytes. Nothing is in its place before everything is here."""
        differing = [(part, [one for one in part.entries if self._differs(part, one)]) for part in parts]
        self._refuse(part.below + one.path for part, entries in differing for one in entries)
        brought = []
        with contextlib.ExitStack() as stack:
            for part, entries in (pair for pair in differing if pair[1]):
                # The same place each time, so that an interrupted pull goes on.
                source = f"{self.run} {self.session.host.name} {part.source} {part.below}"
                name = hashlib.sha256(source.encode(errors="surrogateescape")).hexdigest()[:16]
                staging = stack.enter_context(Staging(self.to / f"{STAGING}{name}"))
                brought.append((part, staging, self._bring(part, entries, staging)))
            try:
                for part, staging, came in brought:
                    for one in came:
                        self._place(staging.top, one, part.below + one.path)
            finally:  # what an interrupted pull has put here is the run's all the same
                if brought:
                    write_record(self.to, self.run, self.record)
            for _, staging, _ in brought:
                discard(str(staging.path))
        everything = [one for _, _, came in brought for one in came]
        return len(everything), sum(one.size for one in everything)

    def _differs(self, part: Part, one: Entry) -> bool:
        name = part.below + one.path
        # A file of that name on a host (a pulled folder, sent along as code) is not to replace the record.
        if name.casefold() == RECORD or name.casefold().startswith(STAGING):
            return False
        found = self._at(name)
        return found is None or not one.same(found)

    def _bring(self, part: Part, entries: Sequence[Entry], staging: Staging) -> list[Entry]:
        """Fill the staging; what was written meanwhile is asked for once more, and is taken as it is."""
        staging.keep_only(part.entries)
        gone = set(receive(self.session, part.root, entries, staging, told=self.told))
        came = [one for one in entries if one.path not in gone]
        if gone:
            again = [one for one in _files(look(self.session, part.source)) if one.path in gone]
            left = receive(self.session, part.root, again, staging, told=self.told, growing=True)
            came += [one for one in again if one.path not in left]
        return came

    def _at(self, name: str) -> Entry | None:
        """Return what is at a path here; None for nothing, and below what is no folder."""
        parts = parts_of(name)
        try:
            return listing.entry_at(parts[-1], self.top.folder(parts[:-1]), name)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_no_folder(error):
                return None
            raise

    def _in_the_way(self, name: str) -> str | None:
        """Name what would be overwritten, or written through: the file itself, or no folder above it."""
        for above in parents(name):
            found = self._at(above)
            if found is not None and found.kind != FOLDER:
                return above
        return None if self._at(name) is None else name

    def _refuse(self, names: Iterable[str]) -> None:
        """Raise UsageError where something would be overwritten that no pull of this run put here."""
        wrong: set[str] = set()
        for name in names:
            place = self._in_the_way(name)
            found = self._at(place) if place else None
            if place and found and [found.size, found.mtime_ns] != self.record.get(place):
                wrong.add(place)
        if wrong:
            shown = ", ".join(map(plain, sorted(wrong)[:_SHOWN]))
            raise UsageError(
                f"will not overwrite what is in {self.to}",
                why=f"not of this run, or changed since it was pulled: {shown}",
                hint="name another folder with --to, or move them away",
            )

    def _place(self, new: Below, one: Entry, name: str) -> None:
        """Give it its place; what an earlier pull put there, or in a folder's place above, goes."""
        self._refuse([name])
        place = self._in_the_way(name)
        if place is not None:
            *above, last = parts_of(place)
            os.unlink(last, dir_fd=self.top.folder(above))
            self.record.pop(place, None)
        source, parts = parts_of(one.path), parts_of(name)
        os.rename(
            source[-1],
            parts[-1],
            src_dir_fd=new.folder(source[:-1]),
            dst_dir_fd=self.top.folder(parts[:-1], make=True),
        )
        found = self._at(name)
        if found is not None:
            self.record[name] = [found.size, found.mtime_ns]


def read_record(to: Path, run: str) -> dict[str, list[int]]:
    """Return what earlier pulls of this run put here: name -> size and time."""
    try:
        known = json.loads(read_plain(to / RECORD, _MOST_RECORD))
        return dict(known["files"]) if known["run"] == run else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}


def write_record(to: Path, run: str, files: dict[str, list[int]]) -> None:
    write_atomically(to / RECORD, json.dumps({"run": run, "files": files}).encode(), 0o666)
