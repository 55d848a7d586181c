"""A host that answers what it likes: listings and tar streams made by hand, behind the seam of a session."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.sync.conversation import Conversation

R = TypeVar("R", bound=wire.Reply)


class Liar:
    """Serves one listing and one stream; each `files_more` gets the next piece, and then the end."""

    def __init__(
        self,
        rows: object,
        pieces: Sequence[bytes] | Iterator[bytes] = (),
        *,
        kind: object = "folder",
        gone: object = (),
        root: object = "/there",
    ) -> None:
        self.host = Host(name="liar", address="192.0.2.1", ssh="liar")
        self.rows = rows
        self.asked: list[str] = []
        self.sent = 0
        self._pieces = iter(pieces)
        self._kind, self._root = kind, root
        self._gone = list(gone) if isinstance(gone, tuple) else gone
        self._submitted: dict[int, wire.Request[Any]] = {}

    @property
    def session(self) -> Conversation:
        return cast("Conversation", self)

    def request(self, request: wire.Request[R], payload: bytes = b"", timeout: float = 60.0) -> R:  # noqa: ARG002
        self.asked.append(request.OP)
        if request.OP == wire.FilesList.OP:
            listing = self.rows if isinstance(self.rows, bytes) else json.dumps(self.rows).encode()
            return self._answer(request, {"kind": self._kind, "root": self._root}, listing)
        return self._answer(request, {"stream": 1})

    def submit(self, request: wire.Request[R], payload: bytes = b"") -> Future[R]:  # noqa: ARG002
        future: Future[R] = Future()
        self._submitted[id(future)] = request
        return future

    def wait(self, future: Future[R], op: str, timeout: float) -> R:  # noqa: ARG002
        request: wire.Request[R] = self._submitted[id(future)]
        piece = next(self._pieces, None)
        if piece is None:
            return self._answer(request, {"end": True, "gone": self._gone})
        self.sent += len(piece)
        return self._answer(request, {"end": False}, piece)

    def _answer(self, request: wire.Request[R], result: dict[str, Any], payload: bytes = b"") -> R:
        """As a real session reads it."""
        try:
            return wire.answer(request, result, payload)
        except wire.ProtocolError as error:
            raise HostError(
                self.host.name, "does not speak our protocol", kind="protocol", why=str(error)
            ) from None


def file(name: str, size: int = 1, **other: Any) -> list[Any]:
    row = {"kind": "file", "mtime_ns": 1_700_000_000_000_000_000, "mode": 0o644, "target": "", **other}
    return [name, row["kind"], size, row["mtime_ns"], row["mode"], row["target"]]


def folder(name: str) -> list[Any]:
    return file(name, 0, kind="folder", mode=0o755)


def link(name: str, target: str) -> list[Any]:
    return file(name, 0, kind="link", target=target)


def member(name: str, data: bytes = b"x", **fields: Any) -> bytes:
    """One member with its content, and no end mark."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(data), 1_700_000_000
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT) + data + b"\0" * (-len(data) % 512)


def tar(*members: bytes) -> bytes:
    return b"".join(members) + b"\0" * 1024


def with_sum(header: bytearray) -> bytes:
    """A header of 512 bytes, with the sum that it should have."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
