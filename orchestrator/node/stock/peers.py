"""Pieces from node to node: TLS with a key that is created for one transfer and known only to its nodes.

The controller creates the key and sends it over SSH; nodes keep it in memory. Both ends must prove it, so a
stranger learns and receives nothing. What a peer sends is compared with the controller's digest.

A client sends how many pieces it needs, and which; the server replies with their content, in parts of any
length. It passes on what has arrived of a piece: otherwise each host would delay the whole line by a piece. A
part without content, every few seconds, is a keepalive.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from io import BufferedReader
from typing import Any, Callable, Sequence

from ..base import descriptors
from ..base.fault import NodeError
from .pieces import Pieces

_NUMBER = struct.Struct(">Q")
_PART = 32 << 10  # bytes that are passed on at once: fewer delay a long line less, but cost more
_ALIVE = 2.0  # seconds between two keepalives
_PATIENCE = 15.0  # seconds without a byte
_CONNECT = 5.0
_MOST = 256  # connections at once


def context(pem: str, *, server: bool) -> ssl.SSLContext:
    """Return a context that accepts only holders of this key; raise OSError if TLS is unavailable here."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False  # the key is the identity: its certificate is the only trusted one
    made.verify_mode = ssl.CERT_REQUIRED
    fd = os.memfd_create("key")  # the library only reads files, and no disk must see it
    try:
        os.write(fd, pem.encode())
        path = f"/proc/self/fd/{fd}"
        made.load_cert_chain(path)
        made.load_verify_locations(path)
    finally:
        os.close(fd)
    return made


class Server:
    """Serves pieces to holders of the key."""

    def __init__(self, pieces: Pieces, pem: str, ports: Sequence[int]) -> None:
        self._pieces = pieces
        self._context = context(pem, server=True)
        for port in (*ports, 0):  # the first free one: ports of tasks pass the same firewalls
            try:
                self._listener = descriptors.listen(port, _MOST)
                break
            except OSError:
                if not port:
                    raise
        self.port: int = self._listener.getsockname()[1]
        self._seats = threading.Semaphore(_MOST)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if self._seats.acquire(blocking=False):  # anybody who reaches the port can connect
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()
            else:
                peer.close()

    def _serve(self, peer: socket.socket) -> None:
        try:
            # Closed without a lingering state: a task may need the port in a moment.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(_PATIENCE)
            with self._context.wrap_socket(peer, server_side=True) as stream:
                manifest = self._pieces.manifest
                requests = stream.makefile("rb")
                (count,) = _NUMBER.unpack(_exactly(requests, _NUMBER.size))
                count = min(count, len(manifest.pieces))
                for number in struct.unpack(f">{count}Q", _exactly(requests, count * _NUMBER.size)):
                    sent = 0
                    while sent < manifest.length(number):
                        part = self._pieces.part(number, sent, _ALIVE)
                        stream.sendall(_NUMBER.pack(len(part)) + part)
                        sent += len(part)
                stream.recv(1)  # until it is complete: pieces in flight are lost when we close
        except (OSError, EOFError, IndexError):
            pass  # a stranger, or a peer that has everything it needs
        finally:
            peer.close()
            self._seats.release()


def pull(
    pieces: Pieces, pem: str, source: dict[str, Any], stopped: threading.Event, on_end: Callable[[str], None]
) -> None:
    """Fetch pieces from one peer, in order, in a separate thread; `on_end` receives the problem.

    A stopped one accepts no more; its thread ends with the peer's next message.
    """

    def run() -> None:
        why = ""
        try:
            _pull(pieces, pem, source, stopped)
        except (EOFError, OSError, NodeError) as error:  # including TLS's own errors
            why = str(error) or type(error).__name__
        if not stopped.is_set():
            on_end(why)

    threading.Thread(target=run, daemon=True).start()


def _pull(pieces: Pieces, pem: str, source: dict[str, Any], stopped: threading.Event) -> None:
    lacking = [piece for piece in source["pieces"] if not pieces.has(piece)]
    if not lacking:
        return
    with socket.create_connection((source["address"], source["port"]), _CONNECT) as plain:
        plain.settimeout(_PATIENCE)
        with context(pem, server=False).wrap_socket(plain) as stream:
            stream.sendall(struct.pack(f">{len(lacking) + 1}Q", len(lacking), *lacking))
            replies = stream.makefile("rb")
            for piece in lacking:
                arrived = pieces.arriving[piece] = bytearray()
                while rest := pieces.manifest.length(piece) - len(arrived):
                    (length,) = _NUMBER.unpack(_exactly(replies, _NUMBER.size))
                    if stopped.is_set():
                        return
                    if length > rest:
                        raise NodeError("piece", f"a piece of {length} bytes was sent")
                    while length:
                        part = _exactly(replies, min(length, _PART))
                        length -= len(part)
                        pieces.add(piece, arrived, part)


def _exactly(stream: BufferedReader, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the peer has closed the connection")
    return data
