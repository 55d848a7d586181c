"""A mirror of what the tasks of a run write for TensorBoard: files that grow here as they grow there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.node.disk.listing import FILE, Entry
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import Staging, look, our_disk, receive

_MARK = "tfevents"  # TensorBoard reads whatever has it in its name
_MOST = 4096  # files of one host
MOST_BYTES = 4 << 30


@dataclass
class EventMirror:
    """Copy of what one host has written, below `folder`."""

    folder: Path
    root: str  # on the host
    sizes: dict[str, int] = field(default_factory=dict)  # of each path, here

    def catch_up(self, session: Conversation, most: int = MOST_BYTES) -> None:
        """Take what is new; raise HostError, or ClusterError when it cannot be written here."""
        there = look(session, self.root, holding=_MARK)
        files = [one for one in there.entries if one.kind == FILE and _MARK in Path(one.path).name]
        grown = [one for one in files if self.sizes.get(one.path) != one.size]
        sizes = {**self.sizes, **{one.path: one.size for one in files}}
        if len(sizes) > _MOST or sum(sizes.values()) > most:
            what, limit = "has more event files than are shown", f"{_MOST:,} of them, and {most >> 20} MB"
            raise HostError(session.host.name, what, kind="files", why=f"shown are at most {limit}")
        with our_disk(self.folder, writes=True), Staging(self.folder) as staging:
            gone = receive(session, there.root, grown, staging, growing=True, here=self._here)
        self.sizes.update({one.path: one.size for one in grown if one.path not in gone})

    def _here(self, one: Entry) -> int:
        """How much of a file has come; -1 of one that is shorter than that: it was written anew."""
        size = self.sizes.get(one.path, -1)
        return size if size <= one.size else -1
