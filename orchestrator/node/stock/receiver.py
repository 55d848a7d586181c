"""The child that receives a data set: pieces from the controller through a pipe, and from peers.

`data_begin` starts it; it ends with `data_seal`, with `data_drop`, or with the agent.
"""

from __future__ import annotations

import os
import signal
import threading

from ..base import locks, trust
from ..base.annotations import Any, Iterator
from ..base.fault import NodeError, unwritable
from ..base.lenient import discard
from ..base.paths import free_bytes
from ..base.tuples import NamedTuple
from ..base.writing import write_all
from ..disk.measuring import measure
from ..disk.removing import remove, remove_stale
from ..serve import frames
from . import reuse, wholeness
from .pieces import Pieces, map_of

INCOMING = ".incoming-"
_WAIT = 3600.0  # seconds for another transfer of the same data into the same folder
_STALE = 7 * 24 * 3600.0  # an interrupted transfer that nobody resumed
_SPARE = 64 << 20  # bytes that stay free on the disk


class Order(NamedTuple):
    """What is to be received, and how."""

    path: str
    notes: str | None  # where `reuse` keeps those of data
    manifest: reuse.Manifest
    size: int  # bytes of a piece
    digests: bytes  # of all pieces
    pem: str
    serve: bool  # give to others what is here
    ports: list[int]


def receive(order: Order, reader: int, tell: int) -> tuple[dict[str, Any], bytes]:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # of a peer that hangs up
    data, name = os.path.split(order.path)
    try:
        os.makedirs(data, exist_ok=True)
        trust.check_way(*os.path.split(data))
        if order.serve and trust.is_ours(order.path):  # whoever asks compares what we give
            pieces = Pieces(order.path, order.manifest, order.size, order.digests, whole=True)
            return _Receiver(order, pieces, tell).serve(reader)
        waits = frames.encode({"waits": True})
        lock = os.path.join(data, f".lock-{name}")
        with locks.Held(lock, _WAIT, "busy", "data that somebody else sends", lambda: os.write(tell, waits)):
            if wholeness.is_whole(order.path, order.manifest, order.notes):
                return {"ok": True, "result": {"present": True, "path": order.path}}, b""
            incoming = incoming_of(order.path)
            held = _begin(order, incoming)
            pieces = Pieces(incoming, order.manifest, order.size, order.digests, held)
            return _Receiver(order, pieces, tell).serve(reader)
    except OSError as error:
        raise unwritable(data, error) from None


class _Receiver:
    """The child: its main thread reads what the controller sends, others take from peers and give to them."""

    def __init__(self, order: Order, pieces: Pieces, tell: int) -> None:
        self._order = order
        self._pieces = pieces
        self._tell = tell
        self._lock = threading.Lock()
        pieces.on_piece = lambda number: self._say({"piece": number})

    def serve(self, reader: int) -> tuple[dict[str, Any], bytes]:
        from . import peers

        port, pullers = 0, None
        try:
            if self._order.pem:
                port = peers.Server(self._pieces, self._order.pem, self._order.ports).port
                pullers = peers.Pullers(self._pieces, self._order.pem, self._trouble, self._idle)
        except (OSError, AttributeError, ImportError):
            pass  # no TLS, or no port: the controller sends everything
        ready = {"present": False, "path": self._order.path, "port": port, "bits": self._pieces.bits()}
        self._say(ready)
        for word, payload in _words(reader):
            if "piece" in word:
                self._pieces.write(int(word["piece"]), payload)
            elif "peers" in word and pullers is not None:
                pullers.follow(int(word["plan"]), word["peers"])
            elif "peers" in word:
                self._idle(int(word["plan"]))
            else:
                return self._seal()
        raise NodeError("data", "the transfer was given up")

    def _seal(self) -> tuple[dict[str, Any], bytes]:
        missing = self._pieces.count - self._pieces.here
        if missing:
            raise NodeError("data", f"{missing} of {self._pieces.count} pieces are missing")
        path, incoming = self._order.path, incoming_of(self._order.path)
        if os.path.lexists(path):
            raise NodeError("data", f"something else has appeared at {path}", "", f"rm -r {path}")
        os.utime(incoming)
        os.rename(incoming, path)
        discard(map_of(incoming))
        reuse.note(self._order.notes, path, self._order.manifest)
        return {"ok": True, "result": {"present": True, "path": path}}, b""

    def _trouble(self, peer: str, why: str) -> None:
        self._say({"trouble": {"host": peer, "why": why[:300]}})

    def _idle(self, plan: int) -> None:
        self._say({"idle": plan})

    def _say(self, word: dict[str, Any]) -> None:
        with self._lock:
            write_all(self._tell, frames.encode(word))


def incoming_of(path: str) -> str:
    data, name = os.path.split(path)
    return os.path.join(data, f"{INCOMING}{name}")


def _begin(order: Order, incoming: str) -> set[str]:
    """`_prepare`, where there is room for the rest; else nothing is left that was not there before."""
    fresh = not (os.path.lexists(order.path) or os.path.lexists(incoming))
    held = _prepare(order, incoming)
    missing = sum(one["size"] for one in order.manifest if one["path"] not in held)
    try:
        _check_room(os.path.dirname(order.path), missing, incoming)
    except NodeError:
        if fresh:
            remove(incoming)
        raise
    return held


def _prepare(order: Order, incoming: str) -> set[str]:
    """Have the folder that is to be filled; return the files that are right, and not to be written to."""
    data = os.path.dirname(order.path)
    remove_stale(data, (INCOMING,), _STALE, incoming)
    if os.path.lexists(order.path):  # damaged: what is right of it stays
        remove(incoming)
        os.rename(order.path, incoming)
        discard(map_of(incoming))
        return wholeness.right(incoming, order.manifest)
    if os.path.lexists(incoming):
        if trust.is_ours(incoming):
            return wholeness.right(incoming, order.manifest, linked=True)
        remove(incoming)
    discard(map_of(incoming))
    os.mkdir(incoming, 0o755)
    missing = reuse.fill(order.notes, data, incoming, order.manifest).missing
    return {one["path"] for one in order.manifest} - {order.manifest[place]["path"] for place in missing}


def _check_room(data: str, missing: int, incoming: str) -> None:
    room = free_bytes(data) + measure(incoming).size  # what an interrupted transfer has left
    if missing + _SPARE > room:
        raise NodeError(
            "data",
            f"has no room for {missing / 1e6:,.0f} MB of data",
            f"{max(0, room) / 1e6:,.0f} MB are free at {data}, and {_SPARE / 1e6:.0f} of them stay free",
            "make room there (`orchestrate clean`), or set `workdir` to another disk",
        )


def _words(reader: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    decoder = frames.Decoder()
    while True:
        data = os.read(reader, 1 << 20)
        if not data:
            return
        yield from decoder.feed(data)
