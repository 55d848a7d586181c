"""A full disk of this machine: what does not fit waits on its node until there is room again."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from orchestrator import wire
from orchestrator.events import Noted
from orchestrator.fleet import Session, TaskNews
from orchestrator.phases.context import Emit, log
from orchestrator.store.mirror import has_room

_AGAIN = 5.0  # seconds between two looks


class PutOff:
    """The streams that were given up for want of room, and the hosts that are to be asked again.

    A host stays connected, whatever is put off: it can be stopped, and asked what its tasks do.
    """

    def __init__(self, folder: Path, on_event: Emit) -> None:
        self._folder = folder
        self._on_event = on_event
        self._streams: dict[tuple[int, int], Session] = {}  # by (id of the session, stream)
        self._due: dict[str, float] = {}  # host -> when to look again, monotonic
        self._full = False

    @property
    def hosts(self) -> set[str]:
        """Those whose logs wait."""
        return set(self._due)

    def holds(self, frame: TaskNews) -> bool:
        """Whether a frame belongs to a stream that was given up."""
        return (id(frame.session), frame.news.stream) in self._streams

    def add(self, frame: TaskNews, error: OSError) -> None:
        """There was no room for a frame: end its stream."""
        stream = frame.news.stream
        self._streams[id(frame.session), stream] = frame.session
        self._due[frame.host] = time.monotonic() + _AGAIN
        frame.session.submit(wire.Unfollow(target=stream))
        if not self._full:
            self._full = True
            log.warning("no room for the logs: %s", error)
            where = error.filename or self._folder
            self._on_event(
                Noted(
                    f"the logs wait on their hosts: {error.strerror} on this machine ({where}); "
                    f"`df -h {shlex.quote(str(self._folder))}`, then make room: the run continues by itself"
                )
            )

    def again(self) -> list[str]:
        """The hosts whose logs may be asked for again, now that there is room."""
        now = time.monotonic()
        due = [name for name, when in self._due.items() if now >= when]
        if not due:
            return []
        if not has_room(self._folder):
            self._due.update(dict.fromkeys(due, now + _AGAIN))
            return []
        for name in due:
            del self._due[name]
        if self._full and not self._due:
            self._full = False
            self._on_event(Noted("there is room again on this machine: the logs are fetched"))
        return due
