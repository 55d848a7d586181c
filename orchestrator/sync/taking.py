"""Puts what came of a host into a folder of a person: nothing of theirs is overwritten or written through.

A record in the folder says what earlier pulls of the same run put there, and how it looked then.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.node.disk import archive, replace
from orchestrator.node.disk.archive import Entry
from orchestrator.node.disk.below import Below, is_no_folder, parts_of
from orchestrator.node.disk.removing import remove as discard
from orchestrator.node.disk.tarstream import FOLDER
from orchestrator.plainfile import make_way, read_plain, write_atomically
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import look
from orchestrator.sync.streams import Told, receive
from orchestrator.text import plain

RECORD = ".orchestrate-pull.json"
_MOST_RECORD = 256 << 20  # bytes: as long as the names of a listing may be
_SHOWN = 5


@dataclass(frozen=True)
class Part:
    """Entries below one folder of a host, and where they belong below the person's folder."""

    root: str
    entries: tuple[Entry, ...]
    below: str  # "" or a path that ends with a slash
    source: str  # what was looked at
    left_out: tuple[str, ...] = ()  # see `admit`

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def files(self) -> int:
        return sum(entry.kind != FOLDER for entry in self.entries)


def parents(path: str) -> Iterator[str]:
    """The folders above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def _local(top: Below, parts: Sequence[str]) -> Entry | None:
    """What is at a path here; None for nothing, and below what is no folder."""
    try:
        return archive.entry_at(parts[-1], top.folder(parts[:-1]), "/".join(parts))
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_no_folder(error):
            return None
        raise


class Taking:
    """One pull into an open folder; what is a person's own there is known by the record."""

    def __init__(self, session: Conversation, to: Path, top: Below, run: str, told: Told) -> None:
        self._session = session
        self._to = to
        self._top = top
        self._run = run
        self._told = told
        self._record = read_record(to, run)

    def take(self, parts: Sequence[Part]) -> tuple[int, int]:
        """The files that came and their bytes. Nothing is in its place before everything is here."""
        differing = [(part, [one for one in part.entries if self._differs(part, one)]) for part in parts]
        self._refuse_to_overwrite(differing)
        files = size = 0
        with contextlib.ExitStack() as stack:
            brought = []
            for part, entries in differing:
                if entries:
                    incoming = Path(replace.beside(str(self._to / "pull")))
                    stack.callback(discard, str(incoming))
                    brought.append((part, incoming, self._bring(part, entries, incoming)))
            try:
                for part, incoming, entries in brought:
                    with Below(str(incoming)) as new:
                        for one in entries:
                            self._place(new, one, part.below + one.path)
                    files += sum(one.kind != FOLDER for one in entries)
                    size += sum(one.size for one in entries)
            finally:  # what an interrupted pull has put here is the run's all the same
                if brought:
                    write_record(self._to, self._run, self._record)
        return files, size

    def _differs(self, part: Part, one: Entry) -> bool:
        name = part.below + one.path
        # A file of that name on a host (a pulled folder, sent along as code) is not to replace the record.
        if name.casefold() == RECORD:
            return False
        found = _local(self._top, parts_of(name))
        return found is None or not one.same(found)

    def _bring(self, part: Part, entries: Sequence[Entry], incoming: Path) -> list[Entry]:
        """Into a hidden folder; what was written meanwhile is asked for once more, and is taken as it is."""
        gone = set(receive(self._session, part.root, entries, incoming, told=self._told))
        came = [one for one in entries if one.path not in gone]
        if gone:
            again = [one for one in look(self._session, part.source).entries if one.path in gone]
            left = receive(self._session, part.root, again, incoming, told=self._told, growing=True)
            came += [one for one in again if one.path not in left]
        return came

    def _refuse_to_overwrite(self, differing: Sequence[tuple[Part, list[Entry]]]) -> None:
        wrong = {
            place
            for part, entries in differing
            for one in entries
            if (place := self._in_the_way(part.below + one.path, one)) is not None
            and not self._is_ours(place)
        }
        if wrong:
            raise self._refusal(wrong)

    def _refusal(self, wrong: Collection[str]) -> UsageError:
        shown = [plain(name) for name in sorted(wrong)[:_SHOWN]]
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        return UsageError(
            f"will not overwrite what is in {self._to}",
            why=f"not of this run, or changed since it was pulled: {', '.join(shown)}{more}",
            hint="name another folder with --to, or move them away",
        )

    def _in_the_way(self, name: str, one: Entry) -> str | None:
        """What would be overwritten, or written through: the file itself, or what is no folder above it."""
        for above in parents(name):
            found = _local(self._top, parts_of(above))
            if found is not None and found.kind != FOLDER:
                return above
        found = _local(self._top, parts_of(name))
        return None if found is None or found.kind == one.kind == FOLDER else name

    def _is_ours(self, name: str) -> bool:
        found = _local(self._top, parts_of(name))
        return found is not None and [found.size, found.mtime_ns] == self._record.get(name)

    def _place(self, new: Below, one: Entry, name: str) -> None:
        """Give it its place; what an earlier pull put there, or in a folder's place above, goes."""
        place = self._in_the_way(name, one)
        if place is not None:
            if not self._is_ours(place):
                raise self._refusal([place])
            *above, last = parts_of(place)
            os.unlink(last, dir_fd=self._top.folder(above))
            del self._record[place]
        parts = parts_of(name)
        if one.kind == FOLDER:
            self._top.folder(parts, make=True)
            return
        source = parts_of(one.path)
        os.rename(
            source[-1],
            parts[-1],
            src_dir_fd=new.folder(source[:-1]),
            dst_dir_fd=self._top.folder(parts[:-1], make=True),
        )
        found = _local(self._top, parts)
        if found is not None:
            self._record[name] = [found.size, found.mtime_ns]


def read_record(to: Path, run: str) -> dict[str, list[int]]:
    """What earlier pulls of this run put here: name -> size and time."""
    try:
        known = json.loads(read_plain(to / RECORD, _MOST_RECORD))
        return dict(known["files"]) if known["run"] == run else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}


def write_record(to: Path, run: str, files: dict[str, list[int]]) -> None:
    make_way(to / RECORD)
    write_atomically(to / RECORD, json.dumps({"run": run, "files": files}).encode(), 0o666)
