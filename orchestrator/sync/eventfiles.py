"""A mirror of what the tasks of a run write for TensorBoard: files that grow here as they grow there.

A host may be anybody's: what it lists is admitted as for a pull, and its bytes are appended where the last
ones ended, never through a link. TensorBoard reads along.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.node.disk.below import Below, parts_of
from orchestrator.node.disk.listing import FILE, Entry
from orchestrator.node.stock.manifest import BLOB
from orchestrator.sync.admit import unasked
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import HostListing, check_room, look, our_disk

MARK = "tfevents"  # TensorBoard reads whatever has it in its name
MOST = 4096  # files of one host
MOST_BYTES = 4 << 30
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class EventMirror:
    """Copy of what one host has written, below `folder`."""

    folder: Path
    root: str  # on the host
    sizes: dict[str, int] = field(default_factory=dict)  # of each path, here

    def catch_up(self, session: Conversation, most: int = MOST_BYTES) -> None:
        """Take what is new; raise HostError, or ClusterError when it cannot be written here."""
        there = look(session, self.root)
        files = [one for one in there.entries if one.kind == FILE and MARK in parts_of(one.path)[-1]]
        total = sum(one.size for one in files)
        if total > most or len(files) > MOST:
            what, limit = "has more event files than are shown", f"{MOST:,} of them, and {most >> 20} MB"
            raise HostError(session.host.name, what, kind="files", why=f"shown are at most {limit}")
        with our_disk(self.folder, writes=True):
            self.folder.mkdir(exist_ok=True)
            check_room(session.host.name, total - sum(self.sizes.values()), self.folder)
            with Below(str(self.folder), made=True) as top:
                for one in files:
                    here = self.sizes.get(one.path, 0)
                    at = here if here <= one.size else 0  # shorter: it was written anew
                    while at < one.size and (data := _ask(session, there, one, at)):
                        self._append(top, one, at, data)
                        at += len(data)

    def _append(self, top: Below, one: Entry, at: int, data: bytes) -> None:
        *above, name = parts_of(one.path)
        fd = os.open(name, _FILE, 0o600, dir_fd=top.folder(above, make=True))
        with os.fdopen(fd, "wb") as file:
            file.truncate(at)
            file.seek(at)
            file.write(data)
        self.sizes[one.path] = at + len(data)


def _ask(session: Conversation, there: HostListing, one: Entry, at: int) -> bytes:
    """Return a piece of a file; nothing of one that is another one by now: the next look shows it."""
    length = min(BLOB, one.size - at)
    asked = json.dumps([(one.path, at, length, one.size, one.mtime_ns)]).encode()
    reply = session.request(wire.FilesGet(root=there.root, parts=1, growing=True), asked, timeout=120.0)
    if len(reply.payload) != (0 if reply.gone else length):
        raise unasked(session.host.name, one.path, "it is not as long as what was asked for")
    return reply.payload
