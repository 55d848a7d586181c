"""Talking to one agent while something is sent to it or fetched from it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from orchestrator.model import Host
from orchestrator.transport import Link
from orchestrator.wire import Reply, Request

R = TypeVar("R", bound=Reply)


class Conversation(Protocol):
    """What sending and fetching need of a session with an agent."""

    host: Host
    link: Link

    def request(self, request: Request[R], payload: bytes = b"", timeout: float = 60.0) -> R: ...

    def submit(self, request: Request[R], payload: bytes = b"") -> Future[R]: ...

    def wait(self, future: Future[R], op: str, timeout: float) -> R: ...


class RequestWindow(Generic[R]):
    """Requests of one kind, `size` of them ahead of their answers: the line is full, the far end is not."""

    def __init__(
        self, session: Conversation, kind: type[Request[R]], size: int, patience: float = 600.0
    ) -> None:
        self._session = session
        self._op = kind.OP
        self._size = size
        self._patience = patience  # seconds for one answer
        self._flying: deque[Future[R]] = deque()

    @property
    def full(self) -> bool:
        return len(self._flying) >= self._size

    def submit(self, request: Request[R], payload: bytes = b"") -> Future[R]:
        """Send the next one, when there is room for it; raise HostError as `take` does."""
        if self.full:
            self.take()
        future = self._session.submit(request, payload)
        self._flying.append(future)
        return future

    def take(self) -> R:
        """The answer to the oldest; raise HostError."""
        return self._session.wait(self._flying.popleft(), self._op, self._patience)

    def finish(self) -> None:
        """Wait for the answers that are still to come; raise HostError."""
        while self._flying:
            self.take()
