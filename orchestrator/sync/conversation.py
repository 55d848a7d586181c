"""Requests to one agent during a transfer: pipelined, and rate-limited."""

import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Protocol, TypeVar

from orchestrator.model import Host
from orchestrator.transport import Link
from orchestrator.wire import Reply, Request

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

_CREDIT = 0.5  # seconds of unused capacity that may be caught up


class Conversation(Protocol):
    """The part of a session with an agent that transfers need."""

    host: Host
    link: Link

    def request(self, request: Request[R], payload: bytes = b"", timeout: float = 60.0) -> R: ...

    def submit(self, request: Request[R], payload: bytes = b"") -> Future[R]: ...

    def wait(self, future: Future[R], op: str, timeout: float) -> R: ...


def ahead(
    session: Conversation,
    messages: Iterable[tuple[Request[R], bytes]],
    patience: float,
    most: int,
    on_done: Callable[[], object] = lambda: None,
) -> Iterator[R]:
    """Send up to `most` messages ahead of replies, so that the line is full but the remote end is not.

    Yield the replies in order; raise HostError. `on_done` is called when a reply has arrived, or never will.
    """
    flying: deque[tuple[str, Future[R]]] = deque()
    for request, payload in messages:
        try:
            future = session.submit(request, payload)
        except BaseException:
            on_done()
            raise
        future.add_done_callback(lambda _: on_done())
        flying.append((request.OP, future))
        if len(flying) == most:
            op, future = flying.popleft()
            yield session.wait(future, op, patience)
    for op, future in flying:
        yield session.wait(future, op, patience)


def batches(items: Iterable[T], size: Callable[[T], int], room: int, most: int) -> Iterator[list[T]]:
    """Cut items into lists of at most `room` bytes, or of one item, and at most `most` items."""
    chosen, total = list[T](), 0
    for item in items:
        if chosen and (total + size(item) > room or len(chosen) == most):
            yield chosen
            chosen, total = [], 0
        chosen.append(item)
        total += size(item)
    if chosen:
        yield chosen


class Throttle:
    """Delays threads so that together they send at most `limit` bytes per second; None: no limit.

    Time that a single thread needs to read and hand over a piece is not added.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._next = time.monotonic()

    def wait(self, size: int) -> None:
        """Block until this many bytes may be sent."""
        if self._limit is None:
            return
        with self._lock:
            now = time.monotonic()
            self._next = max(self._next, now - _CREDIT) + size / self._limit
            delay = self._next - now
        time.sleep(max(0.0, delay))


def one_time_key() -> str:
    """Return a private key and its self-signed certificate as PEM, created and kept in memory.

    The certificate is practically always valid, because nodes' clocks may be wrong.
    """
    from cryptography import x509  # noqa: PLC0415 - 20 ms of every command, and few make a key
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

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
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    return (private + certificate.public_bytes(pem)).decode()
