"""The child that fills one folder: from what is here already, what the controller sends, and what peers give.

    <above>/<name>                what is made, complete when it has its name
    <above>/.incoming-<name>      what has come of it; an interrupted transfer is resumed there
    <above>/.lock-<name>          held by whoever fills it: machines that share the folder wait for each other

A folder that is named by its digest never changes. One that tasks write (`mutable`) is replaced as a whole,
at the end.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple, Sequence

from ..base import locks, trust
from ..base.descriptors import write_all
from ..base.fault import NodeError, unwritable
from ..base.lenient import discard
from ..base.paths import free_bytes
from ..disk.measuring import measure
from ..disk.removing import hide_and_remove, remove, remove_stale
from ..serve import frames
from . import notes
from .manifest import Manifest
from .pieces import Pieces, is_exactly, is_right, tidy

_WAIT = 2 * 3600.0  # seconds for another transfer of the same
_STALE = 24 * 3600.0  # after which what is hidden was given up
_SPARE = 64 << 20  # bytes that stay free
_INCOMING = ".incoming-"


class Order(NamedTuple):
    """A folder to be filled, and its sources."""

    path: str
    mutable: bool
    state: str | None  # the state folder, with the notes of what was verified
    manifest: Manifest
    pem: str  # key and certificate of the transfer; "" to have no peers
    serve: bool  # give to others what is here
    ports: list[int]


def receive(order: Order, reader: int, tell: int) -> tuple[dict[str, Any], bytes]:
    """Fill the folder; the reply is the last word about it."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # of a peer that hangs up
    path = order.path
    above, name = os.path.split(path)
    try:
        os.makedirs(above, exist_ok=True)
        if not order.mutable:
            trust.check_way(*os.path.split(above))
        if order.serve and trust.is_ours(path):  # whoever asks compares what we give
            return _Receiver(order, Pieces(path, order.manifest, whole=True), tell, None).serve(reader)
        with _alone(os.path.join(above, f".lock-{name}")):
            if _is_there(order):
                return {"ok": True, "result": {"present": True, "path": path}}, b""
            held, base = _begin(order)
            return _Receiver(order, Pieces(_incoming(path), order.manifest, held), tell, base).serve(reader)
    except OSError as error:
        raise unwritable(above, error) from None


@contextmanager
def _alone(lock: str) -> Iterator[None]:
    """Hold the lock of a folder, as far as its file system has locks."""
    try:
        held = locks.hold(lock, _WAIT)
    except OSError:
        yield
        return
    if held is None:
        raise NodeError("busy", "waited too long for what somebody else sends", f"{lock} is held")
    try:
        yield
    finally:
        discard(lock)  # while it is held: who waits for it makes another one
        os.close(held)


class _Receiver:
    """The main thread reads what the controller sends, others take from peers and give to them."""

    def __init__(self, order: Order, pieces: Pieces, tell: int, base: str | None) -> None:
        self._order = order
        self._pieces = pieces
        self._tell = tell
        self._base = base
        self._lock = threading.Lock()

    def serve(self, reader: int) -> tuple[dict[str, Any], bytes]:
        """Take pieces until the controller says that it is enough."""
        port, puller = 0, None
        if self._order.pem:
            from . import peers

            try:
                port = peers.Server(self._pieces, self._order.pem, self._order.ports).port
            except (OSError, AttributeError, ImportError):
                pass  # no TLS, or no port: the controller sends everything
        self._pieces.on_piece = lambda number: self._say({"piece": number})
        ready: dict[str, Any] = {"present": False, "path": self._order.path, "port": port}
        if self._base is not None:
            ready["base"] = self._base
        self._say({**ready, "incoming": _incoming(self._order.path), "bits": self._pieces.bits()})
        for word, payload in _words(reader):
            if "pieces" in word:
                self._write(word["pieces"], payload)
            elif "peer" in word and port:
                if puller is not None:
                    puller.stop()
                puller = peers.Puller(self._pieces, self._order.pem, word["peer"], self._idle)
            elif "peer" in word:
                self._idle("this machine speaks no TLS")
            else:
                return self._seal()
        raise NodeError("store", "the transfer was given up")

    def _write(self, numbers: Sequence[int], data: bytes) -> None:
        start = 0
        for number in numbers:
            end = start + self._order.manifest.length(number)
            self._pieces.write(number, data[start:end])
            start = end

    def _seal(self) -> tuple[dict[str, Any], bytes]:
        """Give what is complete its name."""
        order, path, incoming = self._order, self._order.path, _incoming(self._order.path)
        missing = self._pieces.finish()
        if missing:
            raise NodeError("incomplete", f"{missing} of {len(order.manifest.pieces)} pieces are missing")
        gone = os.path.join(os.path.dirname(path), f".gone-{os.path.basename(path)}-{os.urandom(6).hex()}")
        os.utime(incoming)
        if order.mutable and os.path.lexists(path):
            os.rename(path, gone)
        os.rename(incoming, path)
        remove(gone)
        if not order.mutable:
            notes.write(order.state, path, order.manifest)
        return {"ok": True, "result": {}}, b""

    def _idle(self, why: str) -> None:
        self._say({"idle": why[:300]})

    def _say(self, word: dict[str, Any]) -> None:
        with self._lock:
            write_all(self._tell, frames.encode(word))


def _incoming(path: str) -> str:
    above, name = os.path.split(path)
    return os.path.join(above, f"{_INCOMING}{name}")


def _is_there(order: Order) -> bool:
    """Tell whether it is here and right: by its note, or read as a whole."""
    if order.mutable:
        return is_exactly(order.path, order.manifest)
    if not trust.is_ours(order.path):
        return False
    files = notes.read(order.state, order.path)
    if files:
        return all(notes.is_same(order.path, file, mark) for file, mark in files)
    if not is_exactly(order.path, order.manifest):
        return False
    notes.write(order.state, order.path, order.manifest)
    return True


def _begin(order: Order) -> tuple[set[int], str | None]:
    """Have the folder that is filled, with what is here; return the files that are right, and the base."""
    path, incoming, manifest = order.path, _incoming(order.path), order.manifest
    above = os.path.dirname(path)
    if not order.mutable:
        remove_stale(above, (_INCOMING,), _STALE, incoming)
    if os.path.lexists(path) and not order.mutable:
        if trust.is_ours(path):  # damaged: what is right of it stays
            remove(incoming)
            os.rename(path, incoming)
            notes.forget(order.state, path)
        else:  # others could write there: nothing of it can be believed
            hide_and_remove(path)
    if os.path.lexists(incoming) and not trust.is_ours(incoming):
        remove(incoming)
    fresh = not os.path.lexists(incoming)
    if fresh:
        os.mkdir(incoming, 0o755)
    tidy(incoming, manifest)
    linked, base = notes.fill(order.state, path, incoming, manifest)
    if order.mutable:
        linked |= _unchanged(path, incoming, manifest)
    missing = sum(file.size for number, file in enumerate(manifest.files) if number not in linked)
    room = free_bytes(above) + measure(incoming).size  # with what an interrupted transfer has left
    if missing + _SPARE > room:
        if fresh:
            remove(incoming)
        raise NodeError(
            "data",
            f"has no room for {missing / 1e6:,.1f} MB",
            f"{max(0, room) / 1e6:,.1f} MB are free at {above}, and {_SPARE / 1e6:.0f} of them stay free",
            "make room there (`orchestrate clean`), or set `workdir` to another disk",
        )
    return linked, base


def _unchanged(path: str, incoming: str, manifest: Manifest) -> set[int]:
    """Link the files that are right where the folder is now."""
    right = set()
    for number, file in enumerate(manifest.files):
        source, target = os.path.join(path, file.path), os.path.join(incoming, file.path)
        if file.size and not os.path.lexists(target) and is_right(source, manifest, number):
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.link(source, target, follow_symlinks=False)
                os.chmod(target, file.mode)
                right.add(number)
            except OSError:
                continue  # a disk without hard links: it is sent
    return right


def _words(reader: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    decoder = frames.Decoder()
    while True:
        data = os.read(reader, 1 << 20)
        if not data:
            return
        yield from decoder.feed(data)
