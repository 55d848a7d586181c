"""A tar stream through the agent, either way: pieces, some ahead of their answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from orchestrator import wire
from orchestrator.errors import ClusterError, HostError
from orchestrator.node.base.fault import NodeError
from orchestrator.node.disk import archive
from orchestrator.node.disk.archive import Entry
from orchestrator.node.disk.below import shortened
from orchestrator.node.disk.tarstream import CHUNK, UnaskedError
from orchestrator.sync.admit import Links, garbled, unasked
from orchestrator.sync.conversation import Conversation, RequestWindow

_WINDOW = 4  # pieces that are on their way at once
_LOOK_EVERY = 64 << 20  # bytes

Told: TypeAlias = Callable[[int], None]  # bytes that have come or gone, piece by piece


def receive(
    session: Conversation,
    root: str,
    wanted: Sequence[Entry],
    target: Path,
    *,
    told: Told = lambda _: None,
    links: Links = Links.INSIDE,
    growing: bool = False,
) -> list[str]:
    """Bring what `admit` took of a listing of `root` into the empty folder `target`.

    Nothing else is taken, and not a byte more than was listed. Return the names of those that are gone or
    have another size by now; with `growing`, of a file that has grown as much is taken as was listed.
    Raise HostError, ClusterError, or OSError of our disk.
    """
    asked = {one.path: one for one in wanted}
    host = session.host.name
    _check_room(host, sum(one.size for one in wanted), target)
    stream = _Pieces(session, root, asked, target, told, growing=growing)
    try:
        came = archive.unpack(stream, str(target), asked, any_link=links is Links.ANY)
    except NodeError as error:
        raise _refused(host, error) from error
    finally:
        stream.close()
    missing = set(asked) - set(came)
    if not missing <= stream.gone:
        name = min(missing - stream.gone)
        raise garbled(host, f"{shortened(name)} was asked for and did not come, without a word")
    return sorted(missing)


def send(session: Conversation, root: str, wanted: Sequence[Entry], incoming: str, told: Told) -> None:
    """Bring entries below `root` into the folder `incoming` of a host, which `files_begin` has made.

    Raise HostError, ClusterError, or OSError of our disk.
    """
    out = _Sender(session, incoming, told)
    try:
        gone = archive.pack(out, root, [(one.path, one.size) for one in wanted])
    except NodeError as error:
        raise ClusterError(error.what, why=error.why, hint=error.hint) from error
    if gone:
        raise ClusterError(
            f"cannot send {root} as a whole",
            why=f"{gone[0]} vanished or changed while it was read",
            hint="try again",
        )
    out.close()


def _check_room(host: str, size: int, target: Path) -> None:
    free = shutil.disk_usage(target).free
    if size > free:
        raise ClusterError(
            f"not enough room for {size / 1e6:,.0f} MB of {host}",
            why=f"{free / 1e6:,.0f} MB are free in {target.parent}",
            hint="make room, or take another folder",
        )


def _refused(host: str, error: NodeError) -> HostError:
    """What is wrong with a host's stream, said of the host."""
    if isinstance(error, UnaskedError):
        return unasked(host, error.name, error.why)
    return garbled(host, f"{error.what}: {error.why}")


class _Pieces:
    """A tar stream from a host as something to read, some pieces ahead, no longer than it can be."""

    def __init__(
        self,
        session: Conversation,
        root: str,
        wanted: Mapping[str, Entry],
        target: Path,
        told: Told,
        *,
        growing: bool,
    ) -> None:
        self.gone: frozenset[str] = frozenset()
        self._session = session
        self._told = told
        self._target = target
        self._left = archive.room_for(wanted)
        self._unlooked = 0  # bytes since we looked at our disk
        payload = json.dumps([(one.path, one.size) for one in wanted.values()]).encode()
        self._stream = session.request(wire.FilesOpen(root=root, growing=growing), payload).stream
        self._window = RequestWindow(session, wire.FilesMore, _WINDOW)
        for _ in range(_WINDOW):
            self._ask()
        self._buffer = bytearray()
        self._ended = False

    def read(self, size: int) -> bytes:
        """As `file.read`: fewer bytes only at the end."""
        while len(self._buffer) < size and not self._ended:
            reply = self._window.take()
            if reply.end:
                self._ended = True
                self.gone = frozenset(reply.gone)
            else:
                self._take(reply.payload)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def close(self) -> None:
        self._session.submit(wire.FilesClose(stream=self._stream))

    def _take(self, data: bytes) -> None:
        host = self._session.host.name
        self._left -= len(data)
        if not data or self._left < 0:
            raise unasked(
                host, "a stream", "it is empty" if not data else "it is longer than what was listed"
            )
        self._unlooked += len(data)
        if self._unlooked > _LOOK_EVERY:
            self._unlooked = 0
            _check_room(host, len(data), self._target)
        self._buffer += data
        self._ask()
        self._told(len(data))

    def _ask(self) -> None:
        self._window.submit(wire.FilesMore(stream=self._stream))


class _Sender:
    """The way in, as something to write to: pieces, some ahead of their answers."""

    def __init__(self, session: Conversation, incoming: str, told: Told) -> None:
        self._incoming = incoming
        self._told = told
        self._buffer = bytearray()
        self._window = RequestWindow(session, wire.FilesPut, _WINDOW)

    def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= CHUNK:
            self._give(more=True)

    def close(self) -> None:
        """The end of the stream; raise what the far end has to say."""
        self._give(more=False)
        self._window.finish()

    def _give(self, *, more: bool) -> None:
        data = bytes(self._buffer)
        self._buffer.clear()
        self._window.submit(wire.FilesPut(incoming=self._incoming, more=more), data)
        self._told(len(data))
