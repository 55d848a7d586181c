"""Fetching the files of a training into a user's folder, without overwriting anything else there.

A record in that folder lists what earlier pulls of the same run wrote, with size and time; such files are
updated. Anything else that exists and differs belongs to the user, and the pull stops before it changes
anything.
"""

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
    HostListing,
    OnBytes,
    Staging,
    look,
    missing,
    our_disk,
    parents,
    receive,
    torn,
)
from orchestrator.text import plain
from orchestrator.value import Value

RECORD = ".orchestrate-pull.json"
STAGING = ".orchestrate-incoming-"
_MOST_RECORD = 256 << 20  # bytes: as long as the names of a listing may be
_SHOWN = 5
_AGAIN = 3  # requests of a file that is written meanwhile


class Fetched(Value):
    files: int  # transferred
    bytes: int
    seconds: float
    grown: tuple[str, ...]  # longer by now: what came is their beginning
    same: int  # files that were here already
    torn: tuple[str, ...]  # written again each time they were requested: none of them came


class Part(Value):
    """Files and links below one folder of a host, and their place below the user's folder."""

    root: str
    entries: tuple[Entry, ...]
    below: str  # "" or a path that ends with a slash
    source: str  # what was listed
    left_out: tuple[str, ...] = ()  # see `admit`

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


def choose(
    session: Conversation, work: str, paths: Sequence[str], trees: Sequence[str] = (), before: float = 0.0
) -> list[Part]:
    """Return what these paths and patterns match on a host; without any, its whole work folder.

    The code is left out: files of equal size in one of the `trees`, with the same time (rsync keeps times,
    even future ones) or not modified since the tasks started (`before`, by the host's clock). Raise HostError
    (kind "missing") for a path without matches.
    """
    remote = look(session, work)
    if remote.kind != FOLDER:
        raise missing(session, work)
    code = {(each.path, each.size): each.mtime_ns for tree in trees for each in _files(look(session, tree))}
    made = [
        file
        for file in _files(remote)
        if (at := code.get((file.path, file.size))) is None or before * 1e9 <= file.mtime_ns != at
    ]
    parts, chosen = [], dict[str, Entry]()
    links = {entry.path for entry in remote.entries if entry.kind == LINK} | set(remote.left_out)
    for path in (path.rstrip("/") or "/" for path in paths or ["."]):
        if path == ".":
            parts.append(Part(remote.root, tuple(made), "", work, remote.left_out))
        elif path in links or path.startswith(("/", "~")):
            parts.append(_elsewhere(session, path if path not in links else f"{remote.root}/{path}", path))
        elif any(_matches(entry.path, path) for entry in remote.entries):  # requested by name: even code
            chosen.update({entry.path: entry for entry in _files(remote) if _matches(entry.path, path)})
        else:
            raise missing(session, f"{work}/{path}", {each.path.partition("/")[0] for each in remote.entries})
    if chosen:
        parts.append(Part(remote.root, tuple(chosen.values()), "", work))
    return parts


def _files(remote: HostListing) -> list[Entry]:
    """Return files and links; folders follow from their paths."""
    return [entry for entry in remote.entries if entry.kind != FOLDER]


def take(session: Conversation, parts: Sequence[Part], to: Path, run: str, on_bytes: OnBytes) -> Fetched:
    """Write the parts into the folder `to`; raise UsageError, before any change, for what it would overwrite.

    Also raise HostError, or ClusterError for our own disk.
    """
    began = time.monotonic()
    with our_disk(to):
        to.mkdir(parents=True, exist_ok=True)
        with Below(str(to)) as top:
            taking = Taking(session, to, top, run, on_bytes, read_record(to, run))
            files, size = taking.take(parts)
    return Fetched(
        files,
        size,
        time.monotonic() - began,
        same=taking.same,
        grown=tuple(taking.grown),
        torn=tuple(taking.torn),
    )


def keep_from_launches(to: Path) -> None:
    """Make git, and thereby the next launch, treat the folder as results rather than code."""
    path = to / ".gitignore"
    with our_disk(to):
        if not os.path.lexists(path):
            path.write_text("*\n", encoding="ascii")


def _elsewhere(session: Conversation, remote: str, name: str) -> Part:
    there = look(session, remote)
    if not there.kind:
        raise missing(session, remote)
    below = Path(name).name if name[0] in "/~" else name
    below = f"{below}/" if below and there.kind == FOLDER else ""
    return Part(there.root, tuple(_files(there)), below, remote, there.left_out)


def _matches(path: str, pattern: str) -> bool:
    """Return True for the path, one below it, or one that a pattern matches; `*` also matches slashes."""
    return path == pattern or any(
        fnmatch.fnmatchcase(candidate, pattern) for candidate in (path, *parents(path))
    )


class Taking(Struct):
    """One pull into an open folder; the record shows which files there belong to the user."""

    session: Conversation
    to: Path
    top: Below
    run: str
    on_bytes: OnBytes
    record: dict[str, list[int]]
    same: int = 0  # see Fetched
    grown: list[str] = []
    torn: list[str] = []

    def take(self, parts: Sequence[Part]) -> tuple[int, int]:
        """Return the files and bytes that arrived. Nothing is moved into place until all have arrived."""
        pairs = ((part, [entry for entry in part.entries if self._differs(part, entry)]) for part in parts)
        differing = [pair for pair in pairs if pair[1]]
        self.same = sum(len(part.entries) for part in parts) - sum(len(entries) for _, entries in differing)
        self._refuse(part.below + entry.path for part, entries in differing for entry in entries)
        brought = []
        with contextlib.ExitStack() as stack:
            for part, entries in differing:
                # Always the same place, so that an interrupted pull can resume.
                source = f"{self.run} {self.session.host.name} {part.source} {part.below}"
                name = hashlib.sha256(source.encode(errors="surrogateescape")).hexdigest()[:16]
                staging = stack.enter_context(Staging(self.to / f"{STAGING}{name}"))
                brought.append((part, staging, self._bring(part, entries, staging)))
            try:
                for part, staging, came in brought:
                    for entry in came:
                        self._place(staging.top, entry, part.below + entry.path)
            finally:  # files that an interrupted pull has placed here also belong to the run
                if brought:
                    write_record(self.to, self.run, self.record)
            for _, staging, _ in brought:
                discard(str(staging.path))
        everything = [entry for _, _, came in brought for entry in came]
        return len(everything), sum(entry.size for entry in everything)

    def _differs(self, part: Part, entry: Entry) -> bool:
        name = part.below + entry.path
        # A file of that name on a host (a pulled folder sent along as code) must not replace the record.
        if name.casefold() == RECORD or name.casefold().startswith(STAGING):
            return False
        local = self._at(name)
        return local is None or not entry.same(local)

    def _bring(self, part: Part, entries: Sequence[Entry], staging: Staging) -> list[Entry]:
        """Fill the staging folder; a file that changed meanwhile is requested again, with its new size."""
        staging.keep_only(part.entries)
        came = []
        for growing in (False, *[True] * _AGAIN):
            changed = receive(
                self.session, part.root, entries, staging, on_bytes=self.on_bytes, growing=growing
            )
            grown = [entry for entry in entries if entry.path in set(changed.grown)]
            gone = {*changed.gone, *torn(self.session, part.root, grown, staging)}
            came += [entry for entry in entries if entry.path not in gone]
            self.grown += [part.below + entry.path for entry in grown if entry.path not in gone]
            if not gone:
                return came
            entries = [entry for entry in _files(look(self.session, part.source)) if entry.path in gone]
        self.torn += [part.below + entry.path for entry in entries]
        return came

    def _at(self, name: str) -> Entry | None:
        """Return the local state of a path; None if it does not exist, or its parent is not a folder."""
        parts = parts_of(name)
        try:
            return listing.entry_at(parts[-1], self.top.folder(parts[:-1]), name)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_no_folder(error):
                return None
            raise

    def _in_the_way(self, name: str) -> str | None:
        """Return what would be overwritten: the file itself, or a parent that is not a folder."""
        for above in parents(name):
            local = self._at(above)
            if local and local.kind != FOLDER:
                return above
        return None if self._at(name) is None else name

    def _refuse(self, names: Iterable[str]) -> None:
        """Raise UsageError if something would be overwritten that no pull of this run wrote."""
        wrong: set[str] = set()
        for name in names:
            place = self._in_the_way(name)
            local = self._at(place) if place else None
            if place and local and [local.size, local.mtime_ns] != self.record.get(place):
                wrong.add(place)
        if wrong:
            shown = ", ".join(map(plain, sorted(wrong)[:_SHOWN]))
            raise UsageError(
                f"will not overwrite what is in {self.to}",
                why=f"not of this run, or changed since it was pulled: {shown}",
                hint="name another folder with --to, or move them away",
            )

    def _place(self, new: Below, entry: Entry, name: str) -> None:
        """Move it into place, and remove what an earlier pull wrote there or instead of a parent folder."""
        self._refuse([name])
        place = self._in_the_way(name)
        if place:
            *above, last = parts_of(place)
            os.unlink(last, dir_fd=self.top.folder(above))
            self.record.pop(place, None)
        source, parts = parts_of(entry.path), parts_of(name)
        there, here = new.folder(source[:-1]), self.top.folder(parts[:-1], make=True)
        os.rename(source[-1], parts[-1], src_dir_fd=there, dst_dir_fd=here)
        local = self._at(name)
        if local is not None:
            self.record[name] = [local.size, local.mtime_ns]


def read_record(to: Path, run: str) -> dict[str, list[int]]:
    """Return what earlier pulls of this run wrote: name -> size and time."""
    try:
        record = json.loads(read_plain(to / RECORD, _MOST_RECORD))
        return dict(record["files"]) if record["run"] == run else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}


def write_record(to: Path, run: str, files: dict[str, list[int]]) -> None:
    write_atomically(to / RECORD, json.dumps({"run": run, "files": files}).encode(), 0o666)
