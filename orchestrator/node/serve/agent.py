"""Serves one controller over two descriptors, in one thread that never blocks.

It owns nothing that outlives it but the tasks: they run under guards of their own.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable

from ..base.fault import NodeError
from ..base.paths import Paths
from . import frames
from .jobs import Jobs, failure
from .loop import READ, Loop, Outbox

IDLE = 120.0  # seconds without a byte from the controller, after which it is gone
READ_SIZE = 1 << 20


class Request:
    """One message of the controller; a missing field is the controller's bug and said so."""

    def __init__(self, fields: dict[str, Any], payload: bytes) -> None:
        self.id = fields.get("id")
        self.op = str(fields.get("op"))
        self.payload = payload
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise NodeError("protocol", f"`{self.op}` without {name!r}") from None

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)


class Agent:
    """The loop, the way back, the state folder, and each room's own things, as operations see them.

    `answer` replies to a request, now or later.
    """

    def __init__(
        self, config: dict[str, Any], stdin: int, stdout: int, answer: Callable[[Agent, Request], None]
    ) -> None:
        self.loop = Loop()
        self.outbox = Outbox(self.loop, stdout, self.leave)
        self.jobs = Jobs(self.loop)
        self.leases: dict[int, tuple[int, int]] = {}  # port -> its lock and its claim, as descriptors
        self.rooms: dict[str, Any] = {}  # what an operation keeps between requests
        self.on_word: Callable[[], None] = lambda: None  # whenever the controller said something
        self._stdin = stdin
        self._answer = answer
        self._idle = float(config.get("idle") or IDLE)
        self._heard = time.monotonic()
        self._decoder = frames.Decoder()
        self._running = True
        self.failed = False  # what came was not from a controller of ours
        self._paths, self.state_error = _open_state(config.get("state"))

    @property
    def paths(self) -> Paths:
        """The state folder; raise the error that hello told when there is none to be used."""
        if self._paths is None:
            raise self.state_error or NodeError("state", "there is no state folder")
        return self._paths

    @property
    def state(self) -> str | None:
        """The path of the state folder; None when there is none to be used."""
        return None if self._paths is None else self._paths.root

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self.outbox.put(frames.encode(header, payload))

    def reply(self, request: Request, result: dict[str, Any], payload: bytes = b"") -> None:
        self.send({"id": request.id, "ok": True, "result": result}, payload)

    def fail(self, request: Request, error: BaseException) -> None:
        self.send({"id": request.id, **failure(error)[0]})

    def in_child(
        self,
        request: Request,
        work: Callable[[], Any],
        *,
        seconds: float,
        keep: tuple[int, ...] = (),
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Reply with what `work` returns (a result, or a result and a payload) from a child; then `after`."""

        def answer() -> tuple[dict[str, Any], bytes]:
            made = work()
            result, payload = made if isinstance(made, tuple) else (made, b"")
            return {"ok": True, "result": result}, payload

        def done(reply: tuple[dict[str, Any], bytes]) -> None:
            self.send({"id": request.id, **reply[0]}, reply[1])
            after()

        self.jobs.run(request.op, answer, done, seconds=seconds, keep=keep)

    def leave(self) -> None:
        self._running = False

    def serve(self) -> None:
        """Serve until the controller closes our stdin, cannot be written to, or is silent for too long."""
        os.set_blocking(self._stdin, False)
        self.loop.watch(self._stdin, READ, self._hear)
        self._look_whether_idle()
        while self._running:
            self.loop.step()

    def _look_whether_idle(self) -> None:
        left = self._heard + self._idle - time.monotonic()
        if left <= 0:
            self.leave()
        else:
            self.loop.after(left, self._look_whether_idle)

    def _hear(self) -> None:
        try:
            data = os.read(self._stdin, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        self._heard = time.monotonic()
        self.on_word()
        try:
            requests = self._decoder.feed(data)
        except ValueError as error:
            print(f"the agent leaves: its controller does not speak our protocol: {error}", file=sys.stderr)
            self.failed = True
            self.leave()
            return
        for fields, payload in requests:
            self.serve_one(Request(fields, payload))

    def serve_one(self, request: Request) -> None:
        try:
            self._answer(self, request)
        except Exception as error:  # one bad request must not end the others
            self.fail(request, error)


def _open_state(path: str | None) -> tuple[Paths | None, NodeError | None]:
    from ..base import paths

    try:
        return paths.open_root(path), None
    except NodeError as error:
        return None, error
