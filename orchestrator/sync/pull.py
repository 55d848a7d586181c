"""What a training left on a host, into a folder of a person: added to what is there, never over it.

A record in that folder says what earlier pulls of the same run put there, and how it looked then; such
files are renewed. Whatever else is there and differs is the person's own, and the pull stops before it
begins.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from orchestrator.node.disk import archive
from orchestrator.node.disk.archive import Entry
from orchestrator.node.disk.below import Below
from orchestrator.node.disk.tarstream import FILE, FOLDER, LINK
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import Fetched, HostListing, look, missing, our_disk
from orchestrator.sync.streams import Told
from orchestrator.sync.taking import Part, Taking, parents, read_record, write_record


def choose(
    session: Conversation, work: str, paths: Sequence[str], code: Collection[tuple[str, int]]
) -> list[Part]:
    """What these paths and patterns mean on a host; all of its work folder when there are none.

    `code` are the names and sizes of files that are left out. Raise HostError (kind "missing") for a path
    that matches nothing.
    """
    there = look(session, work)
    if there.kind != FOLDER:
        raise missing(session, work, there)
    parts = []
    inside = [entry for entry in there.entries if (entry.path, entry.size) not in code]
    if not paths:
        return [_everything(there, inside, work)]
    chosen: dict[str, Entry] = {}
    links = {entry.path for entry in there.entries if entry.kind == LINK} | set(there.left_out)
    for path in (path.rstrip("/") or "/" for path in paths):
        if path == ".":
            parts.append(_everything(there, inside, work))
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
        parts.append(Part(there.root, tuple(chosen.values()), "", work))
    return parts


def code_of(session: Conversation, trees: Sequence[str], before: float, work: str) -> set[tuple[str, int]]:
    """The files of a work folder that are the code as it was sent: a tree has them, alike in size, and
    nothing wrote to them since the tasks started (`before`, by the host's clock).
    """
    known = {
        (entry.path, entry.size)
        for tree in trees
        for entry in look(session, tree).entries
        if entry.kind != FOLDER
    }
    return {
        (entry.path, entry.size)
        for entry in look(session, work).entries
        if (entry.path, entry.size) in known and entry.mtime_ns < before * 1e9
    }


def take(session: Conversation, parts: Sequence[Part], to: Path, run: str, told: Told) -> Fetched:
    """Bring the parts into the folder `to`; raise UsageError for what it would overwrite, before anything
    was changed, or HostError, or ClusterError for our own disk.
    """
    began = time.monotonic()
    with our_disk(to, writes=True):
        fresh = not to.exists()
        to.mkdir(parents=True, exist_ok=True)
        try:
            with Below(str(to)) as top:
                files, size = Taking(session, to, top, run, told).take(parts)
        except BaseException:
            if fresh:
                with contextlib.suppress(OSError):
                    to.rmdir()
            raise
    return Fetched(files, size, time.monotonic() - began)


def keep_from_launches(to: Path, run: str) -> None:
    """Have git, and so the next launch, take the folder for results and not for code."""
    path = to / ".gitignore"
    with our_disk(to, writes=True):
        if os.path.lexists(path):
            return
        path.write_text("*\n", encoding="ascii")
        record = read_record(to, run)
        if record:  # ours, so that one of the run's own may take its place
            found = archive.entry(str(path), path.name)
            write_record(to, run, {**record, path.name: [found.size, found.mtime_ns]})


def _everything(there: HostListing, inside: list[Entry], work: str) -> Part:
    return Part(there.root, _with_folders(inside, there.entries), "", work, there.left_out)


def _with_folders(wanted: list[Entry], everything: Sequence[Entry]) -> tuple[Entry, ...]:
    """Without folders that hold nothing but code."""
    full = {parent for entry in wanted if entry.kind != FOLDER for parent in parents(entry.path)}
    chosen = {entry.path for entry in wanted}
    code_folders = {
        parent for entry in everything if entry.path not in chosen for parent in parents(entry.path)
    }
    return tuple(
        entry
        for entry in wanted
        if entry.kind != FOLDER or entry.path in full or entry.path not in code_folders
    )


def _elsewhere(session: Conversation, remote: str, name: str) -> Part:
    there = look(session, remote)
    if not there.kind:
        raise missing(session, remote, there)
    if there.kind == FILE:
        return Part(there.root, there.entries, "", remote, there.left_out)
    below = Path(name).name if name[0] in "/~" else name
    return Part(there.root, there.entries, f"{below}/" if below else "", remote, there.left_out)


def _matches(path: str, pattern: str) -> bool:
    """A path, one below it, or what a pattern fits; `*` reaches over folders."""
    return path == pattern or any(fnmatch.fnmatchcase(one, pattern) for one in (path, *parents(path)))


def _plain(pattern: str) -> str:
    """The folders of a pattern that are no pattern, and something that is not there."""
    parts = pattern.split("/")
    first = next((n for n, part in enumerate(parts) if set(part) & set("*?[")), None)
    return pattern if first is None else "/".join([*parts[:first], "\n"])
