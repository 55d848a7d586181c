"""The state of a run, stored next to its events: no verb reads a whole history to learn a run's state."""

import contextlib
import os
from zlib import crc32

import msgspec

from orchestrator.errors import OrchestrateError
from orchestrator.events import Phase, RunEnded
from orchestrator.plainfile import open_plain, read_plain, write_atomically
from orchestrator.run.view import View, apply
from orchestrator.store.folder import MOST, RunFolder
from orchestrator.store.points import newest
from orchestrator.store.reader import RunReader
from orchestrator.text import READING, json_of

_MARK = 256  # bytes before its position in the events that must be identical


def standing(folder: RunFolder) -> tuple[View, int]:
    """Return the view after all events on disk, and how many bytes these are.

    Raise UsageError if the events cannot be read.
    """
    view, offset = _saved(folder)
    reader = RunReader(folder, shows=lambda _task: False, start=offset, progress=False)
    for stamped in reader.poll():
        view = apply(view, stamped.event, stamped.at)
    for point in newest(folder.points):
        if point.task in view.tasks and view.tasks[point.task].attempt == point.attempt:
            view = apply(view, point.event, point.at)
    return view, reader.start


def over(folder: RunFolder) -> RunEnded | None:
    """Return the end of a run; None while parts of it may be alive. Raise UsageError."""
    ended = standing(folder)[0].ended
    return ended if ended is not None and not ended.unproven else None


def in_question(folder: RunFolder) -> bool:
    """Return True if a user who names no run may mean this one: it started tasks, or is being started."""
    try:
        view = standing(folder)[0]
        # Its keeper may have been killed before it recorded the tasks that it started.
        lost = view.phase and view.phase.phase is Phase.LAUNCH and not view.ended
        return view.launched or bool(lost) or folder.has_keeper()
    except OrchestrateError:  # damaged: reading it reports the error
        return True


def save(folder: RunFolder, view: View, written: int) -> None:
    """Store the view after the first bytes of the events; without room for it, these are read instead."""
    body = json_of(view)
    with contextlib.suppress(OSError):
        head = f"{written} {_mark(folder, written)} {crc32(body)}\n".encode()
        write_atomically(folder.view, head + body)


def _saved(folder: RunFolder) -> tuple[View, int]:
    """Return the saved view if it is complete and belongs to these events; None otherwise."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        head, _, body = read_plain(folder.view, MOST).partition(b"\n")
        offset, mark, check = map(int, head.split())
        if offset > 0 and crc32(body) == check and _mark(folder, offset) == mark:
            with READING:
                return msgspec.json.decode(body, type=View), offset
    return View(), 0


def _mark(folder: RunFolder, offset: int) -> int:
    """Digest the bytes of the events before a position: a rewritten file has different ones."""
    with os.fdopen(open_plain(folder.events, os.O_RDONLY), "rb") as file:
        file.seek(max(0, offset - _MARK))
        return crc32(file.read(min(offset, _MARK)))
