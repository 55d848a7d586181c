"""A minimal controller: one agent behind pipes, with synchronous requests."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from orchestrator.node.serve import bootstrap, frames
from tests.node.harness import interpreters

PATIENCE = 60.0  # seconds; an upper bound, never a fixed wait
OLD_PYTHON = next((path for path in interpreters() if path.endswith("3.8")), None)


class AgentError(Exception):
    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['kind']}: {error['what']} ({error['why']})")
        self.kind = error["kind"]
        self.what = error["what"]
        self.why = error["why"]
        self.hint = error["hint"]


class Silence(Exception):  # noqa: N818 - a result rather than an error
    """The agent ended, or did not send the expected message; carries what it did send."""


class AgentClient:
    """Starts an agent, and keeps all its messages."""

    def __init__(
        self,
        state: os.PathLike[str] | str | None = None,
        *,
        python: str = sys.executable,
        idle: float = 60.0,
        env: dict[str, str] | None = None,
        ahead: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    ) -> None:
        """Start the agent; `ahead` are operations sent along with it, with their fields, numbered from 1."""
        self.process = subprocess.Popen(
            bootstrap.argv(python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin = self.process.stdin
        self._stdout = self.process.stdout
        self._decoder = frames.Decoder()
        self._ids = 0
        self.noise = b""
        self.replies: dict[int, tuple[dict[str, Any], bytes]] = {}
        self.stream: list[tuple[dict[str, Any], bytes]] = []
        self.hello: dict[str, Any] = {}
        config = {"state": None if state is None else os.fspath(state), "idle": idle}
        self.stderr = ""
        try:
            requests = enumerate(ahead.items(), 1)
            along = [frames.encode({"id": self._ids + n, "op": op, **fields}) for n, (op, fields) in requests]
            self._ids += len(along)
            self._write(b"".join((bootstrap.payload(config), *along)))
            self._skip_noise()
            self.until(lambda: bool(self.hello))
        except Silence as silence:
            self.process.kill()
            self.close()
            raise Silence(f"{silence}; {self.stderr}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> int:
        """Close the connection, and wait for the agent's end."""
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        try:
            status = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            assert self.process.stderr is not None
            if not self.process.stderr.closed:
                self.stderr = self.process.stderr.read().decode(errors="replace")
                self.process.stderr.close()
        return status

    def send(self, op: str, payload: bytes = b"", **fields: Any) -> int:
        self._ids += 1
        self._write(frames.encode({"id": self._ids, "op": op, **fields}, payload))
        return self._ids

    def reply(self, request: int) -> tuple[dict[str, Any], bytes]:
        self.until(lambda: request in self.replies)
        header, payload = self.replies.pop(request)
        if not header["ok"]:
            raise AgentError(header["error"])
        return header["result"], payload

    def request(self, op: str, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
        return self.reply(self.send(op, payload, **fields))[0]

    def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Receive messages until the condition is true."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.listen(max(0.0, deadline - time.monotonic()))

    def listen(self, timeout: float = PATIENCE) -> None:
        """Receive the agent's next message."""
        self._take(self._read(timeout))

    def _take(self, data: bytes) -> None:
        for header, payload in self._decoder.feed(data):
            if "hello" in header:
                self.hello = header["hello"]
            elif "stream" in header:
                self.stream.append((header, payload))
            elif "id" in header:
                self.replies[header["id"]] = (header, payload)

    def log(self, task: str) -> bytes:
        return b"".join(
            data for header, data in self.stream if header["task"] == task and header["kind"] == "log"
        )

    def states(self, task: str) -> list[dict[str, Any]]:
        return [
            header["state"]
            for header, _ in self.stream
            if header["task"] == task and header["kind"] == "state"
        ]

    def _read(self, timeout: float) -> bytes:
        ready, _, _ = select.select([self._stdout], [], [], timeout)
        data = self._stdout.read(1 << 20) if ready else b""
        if not data:
            why = "nothing came in time" if not ready else "the agent ended"
            raise Silence(f"{why}; noise: {self.noise!r}; stream frames: {len(self.stream)}")
        return data

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise Silence("the agent ended before it received everything") from None

    def _skip_noise(self) -> None:
        while frames.MARKER not in self.noise:
            self.noise += self._read(PATIENCE)
        self.noise, _, rest = self.noise.partition(frames.MARKER)
        self._take(rest)
