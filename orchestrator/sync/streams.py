"""A tar stream through the agent, either way: pieces, some ahead of their answers."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.errors import ClusterError, HostError
from orchestrator.node import archive
from orchestrator.node.fault import NodeError
from orchestrator.sync.push import Session

_WINDOW = 4  # pieces that are on their way at once
_PATIENCE = 600.0

Told: TypeAlias = Callable[[int], None]  # bytes that have come or gone, piece by piece


def receive(
    session: Session,
    root: str,
    names: Sequence[str],
    target: Path,
    *,
    size: int,
    told: Told = lambda _: None,
) -> list[str]:
    """Bring names below `root` into the empty folder `target`; return those that were gone by then.

    `size` is what is expected. Raise HostError, ClusterError, or OSError of our disk.
    """
    free = shutil.disk_usage(target).free
    if size > free:
        raise ClusterError(
            f"not enough room for {size / 1e6:,.0f} MB of {session.host.name}",
            why=f"{free / 1e6:,.0f} MB are free in {target.parent}",
            hint="make room, or take another folder",
        )
    stream = _Pieces(session, root, names, told)
    try:
        archive.unpack(stream, str(target))
    except NodeError as error:
        raise HostError(
            session.host.name, error.what, kind=error.kind, why=error.why, hint=error.hint
        ) from error
    finally:
        stream.close()
    return stream.gone


def send(session: Session, root: str, names: Sequence[str], incoming: str, told: Told) -> None:
    """Bring names below `root` into the folder `incoming` of a host, which `files_begin` has made.

    Raise HostError, ClusterError, or OSError of our disk.
    """
    out = _Sender(session, incoming, told)
    try:
        gone = archive.pack(out, root, names)
    except NodeError as error:
        raise ClusterError(error.what, why=error.why, hint=error.hint) from error
    if gone:
        raise ClusterError(
            f"cannot send {root} as a whole", why=f"{gone[0]} vanished while it was read", hint="try again"
        )
    out.close()


class _Pieces:
    """A tar stream from a host as something to read, asked for some pieces ahead."""

    def __init__(self, session: Session, root: str, names: Sequence[str], told: Told) -> None:
        self.gone: list[str] = []
        self._session = session
        self._told = told
        payload = json.dumps(list(names)).encode()
        self._stream = session.request("files_open", payload, root=root).result["stream"]
        self._flying: deque[Future[Any]] = deque(self._ask() for _ in range(_WINDOW))
        self._buffer = bytearray()
        self._ended = False

    def read(self, size: int) -> bytes:
        """As `file.read`: fewer bytes only at the end."""
        while len(self._buffer) < size and not self._ended:
            reply = self._session.wait(self._flying.popleft(), "files_more", _PATIENCE)
            if reply.result["end"]:
                self._ended = True
                self.gone = reply.result["gone"]
            else:
                self._buffer += reply.payload
                self._flying.append(self._ask())
                self._told(len(reply.payload))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def close(self) -> None:
        self._session.submit("files_close", stream=self._stream)

    def _ask(self) -> Future[Any]:
        return self._session.submit("files_more", stream=self._stream)


class _Sender:
    """The way in, as something to write to: pieces, some ahead of their answers."""

    def __init__(self, session: Session, incoming: str, told: Told) -> None:
        self._session = session
        self._incoming = incoming
        self._told = told
        self._buffer = bytearray()
        self._flying: deque[Future[Any]] = deque()

    def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= archive.CHUNK:
            self._give(more=True)

    def close(self) -> None:
        """The end of the stream; raise what the far end has to say."""
        self._give(more=False)
        while self._flying:
            self._wait()

    def _give(self, *, more: bool) -> None:
        if len(self._flying) >= _WINDOW:
            self._wait()
        data = bytes(self._buffer)
        self._buffer.clear()
        self._flying.append(self._session.submit("files_put", data, incoming=self._incoming, more=more))
        self._told(len(data))

    def _wait(self) -> None:
        self._session.wait(self._flying.popleft(), "files_put", _PATIENCE)
