"""A fake host with handmade listings and contents, behind the interface of a session."""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.sync.conversation import Conversation

R = TypeVar("R", bound=wire.Reply)


class Liar:
    """Serves one listing and file contents; `says` replaces the reply to `files_get`."""

    def __init__(
        self,
        rows: object,
        contents: Mapping[str, bytes] | None = None,
        *,
        says: tuple[dict[str, Any], bytes] | None = None,
    ) -> None:
        self.host = Host(name="liar", address="192.0.2.1", ssh="liar")
        self.rows = rows
        self.asked: list[str] = []
        self._contents = contents or {}
        self.says = says
        self._submitted: dict[int, tuple[wire.Request[Any], bytes]] = {}

    @property
    def session(self) -> Conversation:
        return cast("Conversation", self)

    def request(self, request: wire.Request[R], payload: bytes = b"", timeout: float = 60.0) -> R:  # noqa: ARG002
        self.asked.append(request.OP)
        if request.OP == wire.FilesList.OP:
            return self._answer(request, {"kind": "folder", "root": "/there"}, listing(self.rows))
        if self.says is not None:
            return self._answer(request, *self.says)
        data, gone = b"", []
        for place, (name, at, length, *_) in enumerate(json.loads(payload)):
            if name in self._contents:
                data += self._contents[name][at : at + length]
            else:
                gone.append(place)
        return self._answer(request, {"gone": gone}, data)

    def submit(self, request: wire.Request[R], payload: bytes = b"") -> Future[R]:
        future: Future[R] = Future()
        self._submitted[id(future)] = (request, payload)
        return future

    def wait(self, future: Future[R], op: str, timeout: float) -> R:  # noqa: ARG002
        request, payload = self._submitted[id(future)]
        return cast("R", self.request(request, payload))

    def _answer(self, request: wire.Request[R], result: dict[str, Any], payload: bytes = b"") -> R:
        """Decode the reply as a real session does."""
        try:
            return wire.answer(request, result, payload)
        except wire.ProtocolError as error:
            raise HostError(
                self.host.name, "does not speak our protocol", kind="protocol", why=str(error)
            ) from None


def listing(rows: object) -> bytes:
    """Return rows as a host sends them, one line of JSON each."""
    if isinstance(rows, bytes):
        return rows
    return "\n".join(map(json.dumps, rows if isinstance(rows, list) else [rows])).encode()


def file(name: str, size: int = 1, **other: Any) -> list[Any]:
    row = {"kind": "file", "mtime_ns": 1_700_000_000_000_000_000, "mode": 0o644, "target": "", **other}
    return [name, row["kind"], size, row["mtime_ns"], row["mode"], row["target"], 7]


def folder(name: str) -> list[Any]:
    return file(name, 0, kind="folder", mode=0o755)


def link(name: str, target: str) -> list[Any]:
    return file(name, 0, kind="link", target=target)
