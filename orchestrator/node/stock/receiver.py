"""The child that fills one folder, from existing files, the controller and peers.

    <above>/<name>                the result; the name marks a complete one
    <above>/.incoming-<name>      what has arrived; an interrupted transfer is resumed there
    <above>/.lock-<name>          held by its writer: machines that share the folder wait for each other
    <above>/.replaced-<name>      a mutable folder as it first was, if it had files that nothing else has


A folder that is named by its digest never changes. One that tasks write (`mutable`) is replaced as a whole,
at the end.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from ..base import locks, trust
from ..base.descriptors import write_all
from ..base.fault import NodeError, unwritable
from ..base.paths import free_bytes
from ..disk.listing import walk
from ..disk.removing import aside, hide_and_remove, measure, remove
from ..serve import frames
from . import notes
from .manifest import Manifest
from .pieces import Pieces, is_exactly, tidy

_WAIT = 2 * 3600.0  # seconds for another transfer of the same
_SPARE = 64 << 20  # bytes that stay free
_INCOMING = ".incoming-"


class Order(NamedTuple):
    """A folder to fill, and its sources."""

    path: str
    mutable: bool
    state: str | None  # the state folder, with the notes of verified files
    manifest: Manifest
    pem: str  # key and certificate of the transfer; "" for no peers
    serve: bool  # serve others with what is here
    ports: list[int]

    @property
    def incoming(self) -> str:
        above, name = os.path.split(self.path)
        return f"{above}/{_INCOMING}{name}"


def receive(order: Order, reader: int, tell: int) -> tuple[dict[str, Any], bytes]:
    """Fill the folder; the reply is the final result."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # of a peer that hangs up
    above, name = os.path.split(order.path)
    try:
        os.makedirs(above, exist_ok=True)
        if not order.mutable:
            trust.check_way(*os.path.split(above))
        if order.serve and trust.is_ours(order.path):  # the receiver compares what we send
            _fill(order, Pieces(order.path, order.manifest, whole=True), None, reader, tell)
            return {"ok": True, "result": {}}, b""
        with locks.held(f"{above}/.lock-{name}", _WAIT, "a transfer by another process"):
            if _is_there(order):
                return {"ok": True, "result": {"present": True, "path": order.path}}, b""
            held, base = _begin(order)
            pieces = Pieces(order.incoming, order.manifest, held)
            _fill(order, pieces, base, reader, tell)
            _seal(order, pieces)
            return {"ok": True, "result": {}}, b""
    except OSError as error:
        raise unwritable(above, error) from None


def _is_there(order: Order) -> bool:
    """Return True if it exists and is correct: by its note, or read completely."""
    if order.mutable:
        return is_exactly(order.path, order.manifest)
    if not trust.is_ours(order.path):
        return False
    unchanged = notes.is_unchanged(order.state, order.path)
    if unchanged is not None:
        return unchanged
    if not is_exactly(order.path, order.manifest):
        return False
    notes.write(order.state, order.path, order.manifest)
    return True


def _begin(order: Order) -> tuple[set[int], str | None]:
    """Prepare the folder to fill with what exists; return the correct files, and the base."""
    path, incoming, manifest = order.path, order.incoming, order.manifest
    above = os.path.dirname(path)
    if os.path.lexists(path) and not order.mutable:
        if trust.is_ours(path):  # damaged: its correct parts stay
            remove(incoming)
            os.rename(path, incoming)
            notes.forget(order.state, path)
        else:  # others could write there: none of it is trusted
            hide_and_remove(path)
    if os.path.lexists(incoming) and not trust.is_ours(incoming):
        remove(incoming)
    os.makedirs(incoming, 0o755, exist_ok=True)
    tidy(incoming, manifest)
    linked, base = notes.fill(order.state, path, incoming, manifest)
    missing = sum(file.size for number, file in enumerate(manifest.files) if number not in linked)
    room = free_bytes(above) + measure(incoming).size  # with what an interrupted transfer has left
    if missing + _SPARE > room:
        raise NodeError(
            "data",
            f"lacks disk space: it needs {missing / 1e6:,.1f} MB",
            f"{room / 1e6:,.1f} MB are free at {above}; {_SPARE / 1e6:.0f} MB must remain",
            "make room there (`orchestrate clean`), or set `workdir` to another disk",
        )
    return linked, base


def _fill(order: Order, pieces: Pieces, base: str | None, reader: int, tell: int) -> None:
    """Receive pieces, and serve them to peers, until the controller says that it is enough."""
    lock = threading.Lock()

    def say(word: dict[str, Any]) -> None:
        with lock:
            write_all(tell, frames.encode(word))

    port = 0
    stopped = threading.Event()
    if order.pem:
        from . import peers

        # no TLS, or no port: the controller sends everything
        with suppress(OSError, AttributeError, ImportError):
            port = peers.Server(pieces, order.pem, order.ports).port
    pieces.on_piece = lambda number: say({"piece": number})
    ready = {"present": False, "path": order.path, "incoming": order.incoming, "port": port}
    say({**ready, "bits": pieces.bits(), **({} if base is None else {"base": base})})
    decoder, arrived = frames.Decoder(), bytearray()
    while data := os.read(reader, 1 << 20):
        for word, payload in decoder.feed(data):
            if "pieces" in word:
                at = 0
                for number in word["pieces"]:
                    if not word["start"]:
                        arrived = pieces.arriving[number] = bytearray()
                    part = payload[at : at + order.manifest.length(number)]
                    pieces.add(number, arrived, part)
                    at += len(part)
            elif "peer" not in word:
                return
            elif port:
                stopped.set()
                stopped = threading.Event()
                peers.pull(pieces, order.pem, word["peer"], stopped, lambda why: say({"idle": why[:300]}))
            else:
                say({"idle": "this machine has no TLS"})
    raise NodeError("store", "the transfer was given up")


def _seal(order: Order, pieces: Pieces) -> None:
    path, incoming = order.path, order.incoming
    missing = pieces.finish()
    if missing:
        raise NodeError("incomplete", f"{missing} of {len(order.manifest.pieces)} pieces are missing")
    discarded = aside(path)
    os.utime(incoming)
    if order.mutable and os.path.lexists(path):
        os.rename(path, discarded)
    os.rename(incoming, path)
    if order.mutable:
        _keep(discarded, f"{os.path.dirname(path)}/.replaced-{os.path.basename(path)}", order)
    remove(discarded)
    if not order.mutable:
        notes.write(order.state, path, order.manifest)


def _keep(discarded: str, kept: str, order: Order) -> None:
    """Keep what only this host may have, such as its part of a sharded checkpoint."""
    if os.path.lexists(kept) or not os.path.isdir(discarded):
        return
    if {name for name, _ in walk(discarded, bool)} - {file.path for file in order.manifest.files}:
        os.rename(discarded, kept)
