"""The state of a run, kept beside its events: no verb reads a whole history to learn how a run stands."""

from __future__ import annotations

import contextlib
import os
from zlib import crc32

import msgspec

from orchestrator.errors import OrchestrateError
from orchestrator.events import AttemptFailed, RunEnded, RunLeft, Stamped
from orchestrator.plainfile import open_plain, read_plain, write_atomically
from orchestrator.run.view import View, apply
from orchestrator.store.folder import MOST, RunFolder
from orchestrator.store.points import newest
from orchestrator.store.reader import RunReader
from orchestrator.text import utf8

_EVERY = 200  # events after which the view is written again
_MARK = 256  # bytes before its place in the events that have to be the same


def standing(folder: RunFolder) -> tuple[View, int]:
    """Return the view after all events on disk, and how many bytes these are.

    Raise UsageError when the events cannot be read.
    """
    view, offset = _saved(folder)
    reader = RunReader(folder, wanted=lambda _task: False, start=offset, progress=False)
    for stamped in reader.poll():
        view = apply(view, stamped.event, stamped.at)
    for point in newest(folder.points):
        if point.task in view.tasks and view.tasks[point.task].attempt == point.attempt:
            view = apply(view, point.event, point.at)
    return view, reader.start


def over(folder: RunFolder) -> RunEnded | None:
    """Return the end of a run; None while something of it may be left. Raise UsageError."""
    ended = standing(folder)[0].ended
    return ended if ended is not None and not ended.unproven else None


def in_question(folder: RunFolder) -> bool:
    """Tell whether a person who names no run may mean this one: it started tasks, or is being started."""
    try:
        return standing(folder)[0].launched or folder.has_keeper()
    except OrchestrateError:  # damaged: whoever reads it is told of that
        return True


class ViewFile:
    """Follows a run's events in its keeper, and saves the view every few hundred of them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._since = folder, 0
        self._view = View()
        with contextlib.suppress(OrchestrateError):  # unreadable: so they stay for whoever reads them
            self._view, _ = standing(folder)

    def take(self, stamped: Stamped, written: int) -> None:
        """Apply an event; `written` is the size of the events on disk, it included, or -1."""
        self._view = apply(self._view, stamped.event, stamped.at)
        self._since += written > 0
        last = isinstance(stamped.event, RunEnded | RunLeft | AttemptFailed)
        if written > 0 and (last or self._since >= _EVERY):
            self._since = 0
            body = msgspec.json.encode(utf8(msgspec.to_builtins(self._view)))
            head = f"{written} {_mark(self._folder, written)} {crc32(body)}\n".encode()
            with contextlib.suppress(OSError):  # without room the events are read instead
                write_atomically(self._folder.view, head + body)


def _saved(folder: RunFolder) -> tuple[View, int]:
    """The view that was saved, where it belongs to these events and is whole; else none."""
    try:
        head, _, body = read_plain(folder.view, MOST).partition(b"\n")
        offset, mark, check = map(int, head.split())
        if offset > 0 and crc32(body) == check and _mark(folder, offset) == mark:
            return msgspec.json.decode(body, type=View), offset
    except (OSError, ValueError, RecursionError):
        pass
    return View(), 0


def _mark(folder: RunFolder, offset: int) -> int:
    """Digest the bytes of the events before a place: a file that was begun again has others."""
    with os.fdopen(open_plain(folder.events, os.O_RDONLY), "rb") as file:
        file.seek(max(0, offset - _MARK))
        return crc32(file.read(min(offset, _MARK)))
