"""Talking to one agent while something is sent to it or fetched: ahead of answers, and not too fast."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.model import Host
from orchestrator.transport import Link
from orchestrator.wire import Reply, Request

R = TypeVar("R", bound=Reply)

_CREDIT = 0.5  # seconds that were not used and may be made up for


class Conversation(Protocol):
    """The part of a session with an agent that sending and fetching need."""

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


class Throttle:
    """Holds threads up so that together they send no more than `limit` bytes per second; None: as they come.

    What a single thread needs to read and to hand over between two pieces does not make it slower.
    """

    def __init__(
        self,
        limit: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = clock()

    def wait(self, size: int) -> None:
        """Return when so many bytes may leave."""
        if self._limit is None:
            return
        with self._lock:
            now = self._clock()
            self._next = max(self._next, now - _CREDIT) + size / self._limit
            left = self._next - now
        self._sleep(max(0.0, left))


def one_time_key() -> str:
    """A private key and the certificate that it signed itself, as PEM: made in memory, and kept there.

    The certificate has no time in which it is valid, so to say: nodes' clocks may be anything.
    """
    from cryptography import x509  # noqa: PLC0415 - 10 ms of every command, and few make a key

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "orchestrate")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(1971, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2999, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + certificate.public_bytes(Encoding.PEM)).decode()
