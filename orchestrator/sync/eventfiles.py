"""A mirror of what the tasks of a run write for TensorBoard: files that grow here as they grow there.

A host may be anybody's. Its names go below a folder of its own, one component at a time and never through a
link; its bytes are appended where the last ones ended, and only up to a bound. TensorBoard reads along.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import wire
from orchestrator.node.base.fault import reason
from orchestrator.node.disk.below import Below, parts_of
from orchestrator.node.look.eventfiles import MOST
from orchestrator.sync.admit import unasked
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import our_disk

MOST_BYTES = 4 << 30  # of one host
LEAST_ROOM = 1 << 29  # bytes that stay free on our disk
_SECONDS = 120.0
_AT_ONCE = 256 << 20  # bytes that are taken in one go: others wait for their turn
_AT_LEAST = _AT_ONCE // 1000  # what an answer counts: one of a byte each would go on for days
# What a host's own names do, when a file of it is a folder of it, too; no trouble of our disk.
_NAMES = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class EventMirror:
    """Copy of what one host has written, below `folder`."""

    folder: Path
    root: str  # on the host
    sizes: dict[str, int] = field(default_factory=dict)  # of each path, here
    full: str = ""  # why no more is taken

    def catch_up(self, session: Conversation, most: int = MOST_BYTES) -> bool:
        """Take what is new, a chunk at a time; return True if there was any.

        Raise HostError, or ClusterError when it cannot be written here.
        """
        came = False
        left = _AT_ONCE
        while not self.full and left > 0:
            request = wire.EventFilesOf(root=self.root, known=self.sizes)
            reply = session.request(request, timeout=_SECONDS)
            if not reply.files:
                break
            if why := self._no_room(reply, most):
                self.full = why
                break
            self._take(session.host.name, reply)
            came = True
            left -= max(len(reply.payload), _AT_LEAST)
            if not reply.behind or not reply.payload:
                break
        return came

    def _no_room(self, reply: wire.EventFiles, most: int) -> str:
        if sum(self.sizes.values()) + len(reply.payload) > most:
            return f"it has more than {most >> 20} MB of events"
        if reply.more or len({*self.sizes, *(one.path for one in reply.files)}) > MOST:
            return f"it has more than {MOST:,} event files"
        with our_disk(self.folder, writes=True):
            self.folder.mkdir(exist_ok=True)
            disk = os.statvfs(self.folder)
        return "this machine's disk is nearly full" if disk.f_bavail * disk.f_frsize < LEAST_ROOM else ""

    def _take(self, host: str, reply: wire.EventFiles) -> None:
        at = 0
        with our_disk(self.folder, writes=True), Below(str(self.folder), made=True) as top:
            for one in reply.files:
                try:
                    self._put(top, one, memoryview(reply.payload)[at : at + one.length])
                except OSError as error:
                    if error.errno in _NAMES:
                        raise unasked(host, one.path, reason(error)) from None
                    raise
                at += one.length
                self.sizes[one.path] = one.offset + one.length

    @staticmethod
    def _put(top: Below, one: wire.Grown, rest: memoryview) -> None:
        parts = parts_of(one.path)
        fd = os.open(parts[-1], _FILE, 0o600, dir_fd=top.folder(parts[:-1], make=True))
        try:
            if one.offset == 0:
                os.ftruncate(fd, 0)
            offset = one.offset
            while rest:
                written = os.pwrite(fd, rest, offset)
                rest, offset = rest[written:], offset + written
        finally:
            os.close(fd)
